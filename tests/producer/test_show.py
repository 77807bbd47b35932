"""A run and a document are shown as tables that a person can read."""

import io

import pytest
from rich.console import Console

from producer.archive import Rejected
from producer.folder import RunFolder
from producer.questions import parse_questions
from producer.show import show
from worker.contract import (
    Answered,
    ErrorKind,
    Failed,
    Result,
    Source,
    Usage,
    UsageError,
    answer_from_probabilities,
    job_key,
)

QUESTIONS = parse_questions(
    {
        "team": {"ask": "Which?", "options": ["sales", "billing", "[red]tech"]},
        "mood": {"ask": "How?", "levels": ["Calm", "Angry"]},
        "urgent": "Is it?",
    },
    "set",
)


def result(document_id, outcome):
    return Result(
        job=job_key(document_id), document_id=document_id, source=Source(position=0), attempt=1,
        finished_at=0.0, worker="w", outcome=outcome,
    )  # fmt: skip


def answered(document_id, **probabilities):
    answers = {name: answer_from_probabilities(QUESTIONS[name], p) for name, p in probabilities.items()}
    return result(document_id, Answered(answers=answers, usage=Usage(input_tokens=3, computed_tokens=2)))


@pytest.fixture
def out(tmp_path):
    folder = RunFolder.open(tmp_path / "out", fingerprint={}, format="jsonl", columns={})
    folder.add(answered("case-1", team=[0.1, 0.7, 0.2], mood=[0.25, 0.75], urgent=[0.9, 0.1]), "smollm2")
    folder.add(answered("case-2", team=[0.6, 0.1, 0.3], mood=[0.75, 0.25], urgent=[0.8, 0.2]), "smollm2")
    for number in range(11):
        folder.add(result(f"long-{number}", Failed(kind=ErrorKind.DOCUMENT_TOO_LONG, reason="9000 tokens")), "smollm2")
    folder.record_rejected([Rejected(9, "line 10", ErrorKind.INVALID_JSON, "bad [bold]line")])
    folder.update(
        documents=20, identity={"name": "smollm2", "family": "zeroshot"}, timings={"documents_per_minute": 12.25}
    )
    folder.flush()
    folder.close()
    return tmp_path / "out"


def shown(out, document=None, limit=None):
    console = Console(file=io.StringIO(), width=200)
    show(out, document, console, limit)
    return console.file.getvalue()


def line(text, start):
    (found,) = (line for line in text.splitlines() if line.strip(" │┃").startswith(start))
    return [cell.strip() for cell in found.strip(" │┃").split("│")]


def test_a_run_shows_its_counts_its_model_with_the_warning_and_its_timings(out):
    text = shown(out)
    assert "2 answered, 12 failed, 0 quarantined, 6 left" in text
    assert "smollm2 (zeroshot): shows the machinery; too small to trust" in text
    assert "12.2" in text


def test_a_run_shows_how_each_questions_answers_are_distributed(out):
    text = shown(out)
    assert line(text, "billing") == ["billing", "1", "50%", "0.400"]
    assert line(text, "[red]tech") == ["[red]tech", "0", "0%", "0.250"]
    assert line(text, "1: Angry") == ["1: Angry", "1", "50%", "0.500"]
    assert line(text, "yes") == ["yes", "2", "100%", "0.850"]
    assert "mood (score), mean score 0.50" in text


def test_a_run_shows_its_first_ten_errors_and_how_many_there_are(out):
    text = shown(out)
    assert "12 without answers" in text
    assert text.count("9000 tokens") + text.count("bad [bold]line") == 10


def test_a_limit_says_what_it_leaves_out(out):
    text = shown(out, limit=1)
    assert "team (choice)" in text and "mood (score)" not in text
    assert "2 more questions" in text


def test_a_document_shows_every_question_with_its_other_options(out):
    text = shown(out, "case-1")
    assert line(text, "team") == ["team", "billing", "0.700", "0.550", "[red]tech 0.200, sales 0.100"]
    assert line(text, "mood") == ["mood", "1: Angry (score 0.75)", "0.750", "0.500", "0 0.250"]
    assert line(text, "urgent") == ["urgent", "yes", "0.900", "", "no 0.100"]


def test_a_document_without_answers_shows_why(out):
    assert "long-3: failed, document_too_long: 9000 tokens" in shown(out, "long-3")


def test_an_unknown_document_is_refused_with_ids_that_are_close(out):
    with pytest.raises(UsageError, match="case-1"):
        shown(out, "csae-1")
    with pytest.raises(UsageError, match="14 documents"):
        shown(out, "zzzzzzzz")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run folder"):
        shown(tmp_path)
