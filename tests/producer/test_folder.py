"""The run folder keeps what was answered through crashes, and continues only the run that it holds."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producer.archive import Rejected
from producer.folder import RunFolder, iter_errors, iter_rows, read_manifest
from producer.questions import parse_questions
from worker.contract import (
    Answered,
    ErrorKind,
    Failed,
    Quarantined,
    Result,
    Source,
    Usage,
    UsageError,
    answer_from_probabilities,
    job_key,
)

FORMATS = ["parquet", "jsonl", "csv"]
QUESTIONS = parse_questions(
    {
        "team": {"ask": "Which?", "options": ["sales", "billing", 'q"uote,\n']},
        "mood": {"ask": "How?", "levels": ["Calm", {"level": "Angry"}]},
        "urgent": "Is it?",
    },
    "set",
)
COLUMNS = {"flag": "bool", "n": "int64", "x": "double", "s": "string", "j": "json", "model": "string"}
SOURCE = {"flag": True, "n": 2**60, "x": 1, "s": 'a "b",\nc', "j": {"a": [1, "é"]}, "model": "theirs"}
FINGERPRINT = {"questions": QUESTIONS.digest, "model": {"name": "m", "dtype": "bf16"}}
PROBABILITIES = {"team": [0.1, 0.7, 0.2], "mood": [0.25, 0.75], "urgent": [0.9, 0.1]}


def open_folder(path, format="jsonl", columns=COLUMNS, fingerprint=FINGERPRINT):
    return RunFolder.open(path, fingerprint=fingerprint, format=format, columns=columns)


def answered(document_id, position=0, columns=None, finished_at=1_750_000_000.25):
    answers = {name: answer_from_probabilities(QUESTIONS[name], p) for name, p in PROBABILITIES.items()}
    outcome = Answered(answers=answers, usage=Usage(input_tokens=300, computed_tokens=120))
    return result(document_id, outcome, position, columns, finished_at)


def result(document_id, outcome, position=0, columns=None, finished_at=1_750_000_000.25):
    return Result(
        job=job_key(document_id),
        document_id=document_id,
        source=Source(position=position, columns=columns or {}),
        attempt=2,
        finished_at=finished_at,
        worker="w",
        outcome=outcome,
    )


def failed(document_id, position=0):
    return result(document_id, Failed(kind=ErrorKind.DOCUMENT_TOO_LONG, reason="9000 tokens, limit 8192"), position)


@pytest.fixture
def folder(tmp_path):
    folder = open_folder(tmp_path / "out")
    yield folder
    folder.close()


@pytest.mark.parametrize("format", FORMATS)
def test_rows_come_back_as_the_same_values_from_every_format(tmp_path, format):
    folder = open_folder(tmp_path / "out", format)
    folder.add(answered("a", 3, SOURCE), "mine")
    folder.add(answered('é "x"', 4, {"s": ""}), "mine")
    folder.flush()
    folder.close()
    rows = list(iter_rows(tmp_path / "out"))
    assert [(row["document_id"], row["question_id"]) for row in rows] == [
        (document, question) for document in ("a", 'é "x"') for question in ("team", "mood", "urgent")
    ]
    team, mood, urgent = rows[:3]
    assert team == {
        "document_id": "a", "question_id": "team", "type": "choice", "answer": "billing", "score": None,
        "confidence": pytest.approx(0.55), "probabilities": {"sales": 0.1, "billing": 0.7, 'q"uote,\n': 0.2},
        "model": "mine", "input_tokens": 300, "computed_tokens": 120, "attempt": 2,
        "finished_at": datetime(2025, 6, 15, 15, 6, 40, 250000, UTC), "position": 3, "legend": None,
        "flag": True, "n": 2**60, "x": 1.0, "s": 'a "b",\nc', "j": {"a": [1, "é"]}, "source.model": "theirs",
    }  # fmt: skip
    assert list(team["probabilities"]) == ["sales", "billing", 'q"uote,\n']
    assert list(team) == list(rows[5])
    assert isinstance(team["x"], float)
    assert (mood["answer"], mood["score"], mood["legend"]) == ("1", 0.75, ["Calm", '{"level":"Angry"}'])
    assert (urgent["answer"], urgent["probabilities"], urgent["confidence"]) == ("yes", {"yes": 0.9, "no": 0.1}, None)
    assert [rows[3][name] for name in ("flag", "n", "x", "s", "j", "source.model")] == [
        None,
        None,
        None,
        "",
        None,
        None,
    ]


values = {
    "bool": st.booleans(),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(),
    "json": st.recursive(st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=5),
}


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.fixed_dictionaries({kind: st.none() | value for kind, value in values.items()}))
def test_source_values_of_every_type_survive_every_format(tmp_path_factory, format, columns):
    path = tmp_path_factory.mktemp("run") / "out"
    folder = open_folder(path, format, {kind: kind for kind in values})
    folder.add(answered("a", 0, columns), "m")
    folder.flush()
    folder.close()
    row = next(iter_rows(path))
    assert {kind: row[kind] for kind in values} == columns


def test_parquet_has_the_schema_that_the_columns_say(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = open_folder(tmp_path / "out", "parquet")
    folder.add(answered("a", 0, {}), "m")
    folder.flush()
    folder.close()
    schema = pq.read_schema(tmp_path / "out" / "results" / "part-00000.parquet")
    assert schema.field("probabilities").type == pa.map_(pa.string(), pa.float64())
    assert schema.field("finished_at").type == pa.timestamp("us", tz="UTC")
    assert [schema.field(name).type for name in ("flag", "n", "x", "j")] == [
        pa.bool_(), pa.int64(), pa.float64(), pa.string(),
    ]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
def test_a_second_run_continues_with_new_parts_and_ignores_what_is_done(tmp_path, format):
    path = tmp_path / "out"
    folder = open_folder(path, format)
    run_id = folder.run_id
    folder.update(documents=4)
    assert folder.add(answered("a"), "m") is True
    assert folder.add(answered("a"), "m") is False
    assert folder.buffered == 1
    folder.add(failed("b", 1), "m")
    folder.flush()
    assert folder.buffered == 0
    folder.close()

    again = open_folder(path, format)
    assert again.run_id == run_id
    assert again.has("a") and again.has("b") and not again.has("c")
    assert job_key("a") in again.done and len(again.done) == 2
    assert again.add(answered("b"), "m") is False
    assert again.add(answered("c", 2), "m") is True
    again.flush()
    again.close()
    assert [part.stem for part in sorted((path / "results").iterdir())] == ["part-00000", "part-00001"]
    assert [row["document_id"] for row in iter_rows(path)] == ["a"] * 3 + ["c"] * 3
    assert read_manifest(path)["counts"] == {"documents": 4, "answered": 2, "failed": 1, "quarantined": 0, "left": 1}


def test_counts_are_of_what_is_durable(folder):
    folder.update(documents=1)
    folder.add(answered("a"), "m")
    assert folder.counts["left"] == 1
    folder.flush()
    assert folder.counts == {"documents": 1, "answered": 1, "failed": 0, "quarantined": 0, "left": 0}


def test_a_crash_between_the_part_and_the_manifest_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.update(documents=3)
    folder.add(answered("a"), "m")
    folder.add(failed("b"), "m")
    monkeypatch.setattr(folder, "_append_errors", lambda errors: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        folder.flush()
    folder.close()
    assert read_manifest(path)["counts"]["answered"] == 0
    again = open_folder(path)
    assert again.has("a") and not again.has("b")
    assert again.counts == {"documents": 3, "answered": 1, "failed": 0, "quarantined": 0, "left": 2}
    again.close()


def test_a_crash_in_the_middle_of_a_part_leaves_only_a_temporary_file_that_the_next_run_removes(tmp_path):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.close()
    (path / "results" / "part-00000.jsonl.tmp").write_bytes(b'{"document_id": "a", "quest')
    (path / "manifest.json.tmp").write_bytes(b"{")
    again = open_folder(path)
    assert not list(path.rglob("*.tmp"))
    assert len(again.done) == 0
    again.close()


def test_a_crash_before_the_first_manifest_does_not_lock_the_folder_out(tmp_path):
    path = tmp_path / "out"
    (path / "results").mkdir(parents=True)
    (path / "manifest.json.tmp").write_bytes(b"{")
    (path / ".lock").touch()
    open_folder(path).close()


def test_an_error_line_cut_short_by_a_crash_is_scored_again(tmp_path):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.add(failed("a"), "m")
    folder.add(failed("b"), "m")
    folder.flush()
    folder.close()
    errors = path / "errors.jsonl"
    errors.write_bytes(errors.read_bytes()[:-10])
    assert [error["document"] for error in iter_errors(path)] == ["a"]
    again = open_folder(path)
    assert again.has("a") and not again.has("b")
    again.add(failed("b"), "m")
    again.flush()
    again.close()
    assert [error["document"] for error in iter_errors(path)] == ["a", "b"]


WRITER = """
import sys
from pathlib import Path
from test_folder import answered, failed, open_folder
folder = open_folder(Path(sys.argv[1]), sys.argv[2])
folder.update(documents=100_000)
for number in range(100_000):
    folder.add(failed(str(number), number) if number % 3 == 2 else answered(str(number), number), "m")
    folder.flush()
    print(number, flush=True)
"""


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_flushed_before_a_kill_9_is_there_once_and_the_run_continues(tmp_path, format):
    path = tmp_path / "out"
    command = [sys.executable, "-c", WRITER]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [*command, str(path), format], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    ) as writer:
        for line in writer.stdout:
            if int(line) == 20:
                break
        writer.kill()
    again = open_folder(path, format)
    counts = again.counts
    assert all(again.has(str(number)) for number in range(21))
    assert counts["documents"] == counts["answered"] + counts["failed"] + counts["left"] == 100_000
    assert len(again.done) == counts["answered"] + counts["failed"]
    again.close()
    answers = [(row["document_id"], row["question_id"]) for row in iter_rows(path)]
    assert len(answers) == len(set(answers)) == 3 * counts["answered"]
    assert len(list(iter_errors(path))) == counts["failed"]


def test_a_flush_that_the_disk_refuses_can_be_repeated_without_doubling_rows(tmp_path, monkeypatch):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.add(answered("a"), "m")
    folder.add(failed("b"), "m")
    fsync, calls = os.fsync, []

    def full_at_the_errors(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:  # the part, its folder, then errors.jsonl
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_errors)
    with pytest.raises(UsageError, match="No space left"):
        folder.flush()
    folder.flush()
    folder.close()
    assert len(list(iter_rows(path))) == 3
    assert [error["document"] for error in iter_errors(path)] == ["b"]


def test_errors_say_what_happened_to_which_document(tmp_path):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.add(failed("a", 5), "m")
    folder.add(result("b", Quarantined(kind=ErrorKind.WORKER_LOST, reason="3 workers died"), 6, {"n": 1}), "m")
    folder.flush()
    assert folder.counts["failed"] == 1 and folder.counts["quarantined"] == 1
    folder.close()
    first, second = iter_errors(path)
    assert first == {
        "document": "a", "kind": "document_too_long", "reason": "9000 tokens, limit 8192", "status": "failed",
        "attempts": 2, "position": 5, "at": "2025-06-15T15:06:40.250000+00:00", "source": {},
    }  # fmt: skip
    assert (second["status"], second["source"]) == ("quarantined", {"n": 1})


def test_archive_errors_are_rewritten_at_each_start_and_scoring_errors_kept(tmp_path):
    path = tmp_path / "out"
    folder = open_folder(path)
    folder.update(documents=5)
    folder.record_rejected([Rejected(2, "line 3", ErrorKind.INVALID_JSON, "bad"), Rejected(3, "x", "duplicate_id", "")])
    folder.add(failed("a"), "m")
    folder.flush()
    assert folder.counts == {"documents": 5, "answered": 0, "failed": 3, "quarantined": 0, "left": 2}
    folder.close()

    again = open_folder(path)
    assert again.counts["failed"] == 3
    again.record_rejected([Rejected(2, "line 3", ErrorKind.INVALID_JSON, "bad")])
    again.record_rejected([Rejected(4, "line 5", ErrorKind.INVALID_JSON, "bad")])
    assert again.counts["failed"] == 3
    assert not again.has("line 3")
    again.close()
    assert [error["document"] for error in iter_errors(path)] == ["a", "line 3", "line 5"]


def test_another_fingerprint_format_or_column_type_is_refused_with_each_difference_named(tmp_path):
    path = tmp_path / "out"
    open_folder(path).close()
    other = {"questions": FINGERPRINT["questions"], "model": {"name": "n", "dtype": "bf16"}, "new": 1}
    with pytest.raises(UsageError) as caught:
        open_folder(path, "csv", COLUMNS | {"n": "string"}, other)
    message = str(caught.value)
    assert 'model.name: was "m", now "n"' in message
    assert "new: was not set, now 1" in message
    assert 'format: was "jsonl", now "csv"' in message
    assert 'column n: was "int64", now "string"' in message
    assert "dtype" not in message and "another -o" in message
    open_folder(path).close()  # the refusal let go of the lock


def test_another_order_of_the_same_settings_is_a_difference(tmp_path):
    path = tmp_path / "out"
    open_folder(path, fingerprint={"options": {"a": 1, "b": 2}}).close()
    with pytest.raises(UsageError, match=r"options\.a.*order"):
        open_folder(path, fingerprint={"options": {"b": 2, "a": 1}})


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_appears_later_is_null_in_earlier_rows(tmp_path, format):
    path = tmp_path / "out"
    folder = open_folder(path, format, {"s": "string"})
    folder.add(answered("a", 0, {"s": "x"}), "m")
    folder.flush()
    folder.close()
    again = open_folder(path, format, {"late": "json", "s": "string"})
    again.add(answered("b", 1, {"s": "y", "late": [1]}), "m")
    again.flush()
    again.close()
    assert [(row["s"], row["late"]) for row in iter_rows(path)][::3] == [("x", None), ("y", [1])]


def test_a_value_of_another_type_than_the_scan_found_stops_the_run(folder):
    for columns in ({"n": "text"}, {"n": True}, {"n": 2**63}, {"x": True}, {"unknown": 1}):
        with pytest.raises(UsageError, match="archive changed"):
            folder.add(answered("a", 0, columns), "m")
    assert not folder.has("a")


def test_two_runs_at_once_are_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="in use by another run"):
        open_folder(tmp_path / "out")


def test_a_file_or_a_foreign_folder_is_never_written_into(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file"):
            open_folder(path)
    with pytest.raises(UsageError, match=r"not a run folder.*cat\.jpg"):
        open_folder(tmp_path / "photos")
    assert [child.name for child in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UsageError, match="not writable"):
        open_folder(path)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"run_id": "x"}'])
def test_a_damaged_manifest_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "out"
    path.mkdir()
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"manifest\.json"):
        open_folder(path)
    assert (path / "manifest.json").read_bytes() == content


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_part_is_refused_by_name(tmp_path, format):
    path = tmp_path / "out"
    open_folder(path, format).close()
    (path / "results" / f"part-00000.{format}").write_bytes(b"garbage\nmore")
    with pytest.raises(UsageError, match="part-00000"):
        open_folder(path, format)


def test_the_manifest_holds_its_sections_and_its_own_fields_are_not_overwritten(folder, tmp_path):
    folder.update(identity={"name": "m"}, timings={"seconds": 1.5})
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["identity"] == {"name": "m"} and manifest["timings"] == {"seconds": 1.5}
    assert manifest["fingerprint"] == FINGERPRINT
    assert {"version", "run_id", "created_at", "updated_at", "format", "columns", "counts"} <= manifest.keys()
    with pytest.raises(ValueError, match="counts"):
        folder.update(counts={})


def test_reading_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run folder"):
        list(iter_rows(tmp_path))
