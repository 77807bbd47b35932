"""Runs from the command line, over a real Redis and real Celery workers with a stand-in for the model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest
import redis as redis_py

from producer.embedded import EmbeddedRedis
from producer.folder import iter_errors, iter_rows, read_manifest
from tests.fake_worker import probabilities

QUESTIONS = """
dismissed: {type: noul, instructions: "Is the appeal dismissed?"}
area: {type: choice, instructions: "Which area of law?", criteria: {contract: null, crime: null, family: null}}
"""


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.yaml"
    path.write_text(QUESTIONS)
    return path


def archive(tmp_path: Path, texts: Sequence[str]) -> Path:
    path = tmp_path / "archive.jsonl"
    lines = [orjson.dumps({"id": f"d{n}", "court": f"court {n}", "text": text}) for n, text in enumerate(texts)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "producer.cli", *map(str, arguments)]


def nightcourt(*arguments: object, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=seconds, check=False)


@contextlib.contextmanager
def fake_worker(url: str, name: str = "f0", *rest: str, model: str = "fake") -> Iterator[subprocess.Popen[bytes]]:
    script = Path(__file__).resolve().parents[1] / "fake_worker.py"
    root = str(script.parents[1])
    process = subprocess.Popen(
        [sys.executable, str(script), url, model, name, *rest],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_arguments(path: Path, questions: Path, out: Path, server: EmbeddedRedis, *more: object) -> list[object]:
    return ["run", path, "-q", questions, "-o", out, "--model", "fake", "--redis", server.url, *more]


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_every_document_gets_a_row_for_every_question(tmp_path, questions, redis, redis_server, format):
    texts = [f"text {n}" for n in range(150)]
    with fake_worker(redis_server.url):
        done = nightcourt(
            *run_arguments(archive(tmp_path, texts), questions, tmp_path / "out", redis_server, "--format", format)
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["document_id"], row["question_id"]): row for row in iter_rows(tmp_path / "out")}
    assert len(rows) == 300
    for n, text in enumerate(texts):
        row = rows[f"d{n}", "area"]
        assert row["court"] == f"court {n}"
        assert list(row["probabilities"]) == ["contract", "crime", "family"]
        assert list(row["probabilities"].values()) == pytest.approx(probabilities(text, "area", 3), abs=1e-12)
    manifest = read_manifest(tmp_path / "out")
    assert manifest["counts"] == {"documents": 150, "answered": 150, "failed": 0, "quarantined": 0, "left": 0}
    assert manifest["identity"]["readout"] == "hash"
    assert redis.keys("nightcourt:*") == []


def test_failed_documents_are_told_with_reasons_and_the_rest_is_answered(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, ["fine", "long", "explode", "fine too"])
    with fake_worker(redis_server.url):
        done = nightcourt(*run_arguments(path, questions, tmp_path / "out", redis_server))
    assert done.returncode == 1
    errors = {error["document"]: error for error in iter_errors(tmp_path / "out")}
    assert errors["d1"]["kind"] == "document_too_long"
    assert errors["d1"]["attempts"] == 1
    assert errors["d2"]["kind"] == "internal"
    assert errors["d2"]["attempts"] == 3
    assert "exploded" in errors["d2"]["reason"]
    assert {row["document_id"] for row in iter_rows(tmp_path / "out")} == {"d0", "d3"}


def test_a_run_killed_in_the_middle_continues_and_answers_each_document_once(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, [f"slow {n}" for n in range(12)])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    with fake_worker(redis_server.url):
        first = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
        wait_for(lambda: any(redis.xlen(key) >= 3 for key in redis.keys("nightcourt:*:results")))
        first.kill()
        first.wait()
        again = nightcourt(*arguments)
    assert again.returncode == 0, again.stdout + again.stderr
    documents = [row["document_id"] for row in iter_rows(tmp_path / "out") if row["question_id"] == "area"]
    assert sorted(documents) == sorted(f"d{n}" for n in range(12))


def test_an_interrupted_run_keeps_its_results_and_exits_130(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, [f"slow {n}" for n in range(60)])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    with fake_worker(redis_server.url):
        process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: any(redis.xlen(key) >= 2 for key in redis.keys("nightcourt:*:results")))
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continues this run" in complaint
    counts = read_manifest(tmp_path / "out")["counts"]
    assert counts["answered"] >= 2
    assert counts["left"] == 60 - counts["answered"]


def test_a_finished_run_started_again_has_nothing_to_do(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, ["one", "two"])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    with fake_worker(redis_server.url):
        assert nightcourt(*arguments).returncode == 0
    assert nightcourt(*arguments, seconds=60).returncode == 0, "no worker is there: none may be needed"


def test_another_question_set_or_model_is_refused_with_the_difference_named(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, ["one"])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    with fake_worker(redis_server.url):
        assert nightcourt(*arguments).returncode == 0
    questions.write_text(QUESTIONS.replace("dismissed?", "allowed?"))
    refused = nightcourt(*arguments)
    assert refused.returncode == 2
    assert "questions" in refused.stderr
    questions.write_text(QUESTIONS)
    refused = nightcourt(*arguments, "--model", "other")
    assert refused.returncode == 2
    assert "model" in refused.stderr
    assert "other" in refused.stderr


def test_a_run_never_mixes_answers_of_two_checkpoints_of_one_name(tmp_path, questions, redis, redis_server):
    path = archive(tmp_path, [f"slow {n}" for n in range(30)])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    with fake_worker(redis_server.url, "f0"):
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: any(redis.xlen(key) >= 1 for key in redis.keys("nightcourt:*:results")))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    with fake_worker(redis_server.url, "f1", "another-checkpoint"):
        refused = nightcourt(*arguments)
    assert refused.returncode == 2
    assert "checkpoint_sha256 was fake and is now another-checkpoint" in " ".join(refused.stderr.split())


def test_a_document_that_kills_its_workers_is_quarantined_and_the_rest_answered(
    tmp_path, questions, redis, redis_server
):
    path = archive(tmp_path, ["fine", "die", "fine too"])
    arguments = run_arguments(path, questions, tmp_path / "out", redis_server)
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
    for attempt in range(6):
        with fake_worker(redis_server.url, f"f{attempt}") as worker:
            wait_for(lambda worker=worker: worker.poll() is not None or process.poll() is not None)
        if process.poll() is not None:
            break
    assert process.wait(timeout=60) == 1
    [error] = iter_errors(tmp_path / "out")
    assert (error["document"], error["status"], error["attempts"]) == ("d1", "quarantined", 3)
    assert {row["document_id"] for row in iter_rows(tmp_path / "out")} == {"d0", "d2"}


def test_lines_with_their_own_questions_need_no_question_set(tmp_path, redis, redis_server):
    path = tmp_path / "requests.jsonl"
    path.write_bytes(
        b"\n".join(
            orjson.dumps(
                {"id": f"r{n}", "state": {"n": n}, "questions": {f"q{n}": {"type": "noul", "instructions": "?"}}}
            )
            for n in range(3)
        )
    )
    with fake_worker(redis_server.url):
        done = nightcourt(
            "run", path, "-o", tmp_path / "out", "--model", "fake", "--redis", redis_server.url, "--quiet"
        )
    assert (done.returncode, done.stdout) == (0, "")
    assert {(row["document_id"], row["question_id"]) for row in iter_rows(tmp_path / "out")} == {
        (f"r{n}", f"q{n}") for n in range(3)
    }


def test_an_unreachable_redis_is_said_in_one_line_without_its_password(tmp_path, questions):
    refused = nightcourt(
        "run", archive(tmp_path, ["one"]), "-q", questions, "-o", tmp_path / "out",
        "--redis", "redis://user:secret@127.0.0.1:1/0",
    )  # fmt: skip
    assert refused.returncode == 2
    assert "no Redis answers at redis://***@127.0.0.1:1/0" in " ".join(refused.stderr.split())
    assert "secret" not in refused.stdout + refused.stderr


def test_redis_in_the_environment_is_used_and_the_command_line_comes_first(tmp_path, questions):
    environment = {**os.environ, "NIGHTCOURT_REDIS_URL": "redis://127.0.0.1:2/0"}
    arguments = ["run", archive(tmp_path, ["one"]), "-q", questions, "-o", tmp_path / "out"]
    found = subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, check=False)
    assert "127.0.0.1:2" in found.stderr
    found = subprocess.run(
        command(*arguments, "--redis", "redis://127.0.0.1:3/0"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "127.0.0.1:3" in found.stderr


def test_a_port_that_is_no_redis_is_refused(tmp_path, questions):
    with redis_py.connection.socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        refused = nightcourt(
            "run", archive(tmp_path, ["one"]), "-q", questions, "-o", tmp_path / "out", "--redis", url, seconds=180
        )
    assert refused.returncode == 2
    assert "no Redis answers" in refused.stderr
