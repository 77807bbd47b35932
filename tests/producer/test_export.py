"""Exports hold one row per document in the archive's order, with nothing lost and nothing half written."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from producer.archive import Rejected
from producer.export import export_systemone, export_wide
from producer.folder import RunFolder
from producer.questions import parse_questions
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
        "team": {"ask": "Which?", "options": ["sales", "billing"]},
        "mood": {"ask": "How?", "levels": ["Calm", "Angry"]},
        "urgent": "Is it?",
        "id": "Is it an id?",
    },
    "set",
)
PROBABILITIES = {"team": [0.25, 0.75], "mood": [0.5, 0.5], "urgent": [0.9, 0.1], "id": [0.2, 0.8]}
COLUMNS = {"zeta": "string", "model": "string", "error": "bool", "j": "json", "n": "int64"}
HEADER = [
    "id", "zeta", "model", "source.error", "j", "n", "team", "team.p.sales", "team.p.billing",
    "mood", "mood.p.0", "mood.p.1", "mood.score", "urgent", "urgent.p.yes", "urgent.p.no",
    "question.id", "id.p.yes", "id.p.no", "error",
]  # fmt: skip


def result(document_id, position, columns, outcome):
    return Result(
        job=job_key(document_id), document_id=document_id, source=Source(position=position, columns=columns),
        attempt=1, finished_at=0.0, worker="w", outcome=outcome,
    )  # fmt: skip


@pytest.fixture(params=["parquet", "jsonl", "csv"])
def out(tmp_path, request):
    folder = RunFolder.open(tmp_path / "out", fingerprint={}, format=request.param, columns=COLUMNS)
    answers = {name: answer_from_probabilities(QUESTIONS[name], p) for name, p in PROBABILITIES.items()}
    outcome = Answered(answers=answers, usage=Usage(input_tokens=300, computed_tokens=120))
    folder.add(result("last", 3, {"n": 2**60, "j": {"a": 1}}, outcome), "m")
    folder.flush()
    folder.add(result("first", 0, {"zeta": "=1+1", "model": "theirs", "error": True}, outcome), "m")
    failed = Failed(kind=ErrorKind.DOCUMENT_TOO_LONG, reason="9000 tokens")
    folder.add(result("long", 2, {"zeta": "kept"}, failed), "m")
    folder.record_rejected([Rejected(1, "line 2", ErrorKind.INVALID_JSON, "bad")])
    folder.flush()
    folder.close()
    return tmp_path / "out"


def test_a_wide_csv_has_the_sources_columns_then_each_question_then_the_error(out, tmp_path):
    export_wide(out, tmp_path / "wide.csv")
    with (tmp_path / "wide.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == HEADER
    first, rejected, long, last = (dict(zip(header, row, strict=True)) for row in rows)
    assert [first["id"], rejected["id"], long["id"], last["id"]] == ["first", "line 2", "long", "last"]
    assert [first[name] for name in ("zeta", "model", "source.error")] == ["=1+1", "theirs", "true"]
    assert [first[name] for name in HEADER[6:-1]] == [
        "billing", "0.25", "0.75", "0", "0.5", "0.5", "0.5", "yes", "0.9", "0.1", "no", "0.2", "0.8",
    ]  # fmt: skip
    assert (long["zeta"], long["team"], long["error"]) == ("kept", "", "document_too_long: 9000 tokens")
    assert rejected["error"] == "invalid_json: bad"
    assert (last["n"], last["j"], last["error"]) == (str(2**60), '{"a":1}', "")


def test_wide_parquet_and_jsonl_hold_the_same_typed_values(out, tmp_path):
    export_wide(out, tmp_path / "wide.parquet")
    export_wide(out, tmp_path / "wide.jsonl")
    from_parquet = pq.read_table(tmp_path / "wide.parquet").to_pylist()
    from_jsonl = [json.loads(line) for line in (tmp_path / "wide.jsonl").read_text().splitlines()]
    assert [list(row) for row in from_jsonl] == [HEADER] * 4
    assert from_jsonl[3]["j"] == {"a": 1}
    assert from_parquet[3]["j"] == '{"a":1}'
    assert [{**row, "j": None} for row in from_parquet] == [{**row, "j": None} for row in from_jsonl]
    assert (from_jsonl[0]["source.error"], from_jsonl[3]["n"], from_jsonl[0]["mood.score"]) == (True, 2**60, 0.5)


def test_system_one_answers_are_those_of_a_system_one_server(out, tmp_path):
    export_systemone(out, tmp_path / "answers.jsonl")
    first, rejected, long, last = (json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines())
    assert first == {
        "id": "first",
        "model": "m",
        "answers": {
            "team": {"type": "choice", "choice": "billing", "probabilities": {"sales": 0.25, "billing": 0.75},
                     "confidence": 0.5},
            "mood": {"type": "score", "score": 0.5, "legend": {"0": "Calm", "1": "Angry"},
                     "probabilities": {"0": 0.5, "1": 0.5}, "confidence": 0.0},
            "urgent": {"type": "noul", "noul": 0.9},
            "id": {"type": "noul", "noul": 0.2},
        },
        "usage": {"input_tokens": 300, "output_tokens": 0, "x_computed_tokens": 120},
    }  # fmt: skip
    assert long == {"id": "long", "error": {"kind": "document_too_long", "reason": "9000 tokens"}}
    assert (rejected["id"], last["id"]) == ("line 2", "last")


def test_another_suffix_is_refused_with_those_that_are_known(out, tmp_path):
    with pytest.raises(UsageError, match=r"expected the suffix \.csv, \.parquet or \.jsonl, found '\.xlsx'"):
        export_wide(out, tmp_path / "wide.xlsx")


def test_a_file_that_cannot_be_written_is_refused(out, tmp_path):
    for export in (export_wide, export_systemone):
        with pytest.raises(UsageError, match="cannot be written"):
            export(out, tmp_path / "missing" / "wide.jsonl")


def test_an_export_that_fails_leaves_the_earlier_file_as_it_was(out, tmp_path):
    target = tmp_path / "wide.csv"
    target.write_text("earlier")
    (out / "errors.jsonl").write_bytes(b"damaged\n")
    with pytest.raises(UsageError, match="damaged"):
        export_wide(out, target)
    assert target.read_text() == "earlier"
    assert not list(tmp_path.glob("*.tmp"))


def test_documents_with_questions_of_their_own_share_one_table(tmp_path):
    folder = RunFolder.open(tmp_path / "out", fingerprint={}, format="jsonl", columns={})
    for position, (document, options) in enumerate([("a", ["x", "y"]), ("b", ["y", "z"])]):
        question = parse_questions({"q": options}, "set")["q"]
        answers = {"q": answer_from_probabilities(question, [0.75, 0.25])}
        outcome = Answered(answers=answers, usage=Usage(input_tokens=1, computed_tokens=1))
        folder.add(result(document, position, {}, outcome), "m")
    folder.flush()
    folder.close()
    export_wide(tmp_path / "out", tmp_path / "wide.jsonl")
    first, second = (json.loads(line) for line in (tmp_path / "wide.jsonl").read_text().splitlines())
    assert first == {"id": "a", "q": "x", "q.p.x": 0.75, "q.p.y": 0.25, "q.p.z": None, "error": None}
    assert second == {"id": "b", "q": "y", "q.p.x": None, "q.p.y": 0.75, "q.p.z": 0.25, "error": None}
