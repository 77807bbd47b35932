"""What zeroshot makes of checkpoints and question sets that are not as usual."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from safetensors.torch import load_file, save_file

from tests.worker.families.tiny import TEMPLATE, write_checkpoint
from worker import scorer as scorer_module
from worker.contract import Job, ModelError, QuestionSet
from worker.scorer import Scorer

ASKED = QuestionSet.model_validate({"dismissed": {"type": "noul", "instructions": "Is the appeal dismissed?"}})
JOB = Job(document_id="d", state="The appeal is dismissed.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny")


def with_template(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_missing_weights_are_refused_and_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of its weights \(model\.layers\.1\.mlp\.up_proj\.weight"):
        Scorer.load(str(folder))


def test_code_in_a_checkpoint_is_neither_run_nor_asked_about(folder, monkeypatch):
    config = orjson.loads((folder / "config.json").read_bytes())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_bytes(orjson.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('code of a checkpoint was run')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    with pytest.raises(ModelError, match="does not load"):
        Scorer.load(str(folder))


def test_a_template_that_names_the_day_gives_the_same_prompt_every_day(folder):
    loaded = Scorer.load(str(with_template(folder, "{{ strftime_now('%d %B %Y') }}\n" + TEMPLATE)))
    assert loaded._family.prompt.head.startswith("01 January 2026\n")


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for %}", "hello"])
def test_a_template_that_cannot_be_used_is_refused(folder, template):
    with pytest.raises(ModelError, match="chat template"):
        Scorer.load(str(with_template(folder, template)))


@pytest.mark.parametrize("readout", ["letters", "likelihood"])
def test_an_option_without_a_name_is_asked_like_any_other(folder, readout):
    asked = QuestionSet.model_validate(
        {"area": {"type": "choice", "instructions": "Which?", "criteria": {"": "none", "crime": None}}}
    )
    answered = Scorer.load(str(folder), readout=readout).score(JOB, asked)
    assert sum(answered.answers["area"].probabilities.values()) == pytest.approx(1, abs=1e-9)


def test_priors_of_many_question_sets_do_not_pile_up(folder, monkeypatch):
    monkeypatch.setattr(scorer_module, "KEPT_PRIORS", 3)
    loaded = Scorer.load(str(folder), readout="likelihood")
    first = loaded.score(JOB, ASKED)
    for number in range(5):
        loaded.score(
            JOB, QuestionSet.model_validate({"q": {"type": "noul", "instructions": f"Is it number {number}?"}})
        )
    assert len(loaded._priors) == 3
    assert loaded.score(JOB, ASKED) == first


@pytest.mark.parametrize("device", ["meta", "nosuch", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused(folder, device):
    with pytest.raises(ModelError, match=device):
        Scorer.load(str(folder), device=device)
