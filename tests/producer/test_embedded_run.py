"""Runs with the embedded Redis and a worker of their own, over a tiny random model, through what may befall them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from producer import score
from producer.folder import iter_rows, read_manifest
from tests.worker.families.tiny import write_checkpoint
from worker.contract import Answered

QUESTIONS = {"dismissed": "Is the appeal dismissed?", "area": {"ask": "Which area?", "options": ["contract", "crime"]}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"))


def start(tmp_path: Path, model: Path, documents: int, words: int = 20) -> subprocess.Popen[str]:
    lines = [{"id": f"d{n}", "text": f"Appeal {n} is dismissed. " * words} for n in range(documents)]
    (tmp_path / "archive.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    (tmp_path / "questions.json").write_bytes(orjson.dumps(QUESTIONS))
    return subprocess.Popen(
        [sys.executable, "-m", "producer.cli", "run", "archive.jsonl", "-q", "questions.json", "-o", "out",
         "--model", str(model)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def processes(tmp_path: Path) -> dict[int, str]:
    """Every process of a run, found by what only it has: the run folder among its arguments or as its folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                place = str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(tmp_path) in line or place.startswith(str(tmp_path)):
                found[int(entry.name)] = line
    return found


def wait_for(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def worker_pid(tmp_path: Path) -> int | None:
    return next((pid for pid, line in processes(tmp_path).items() if "-m worker " in line), None)


def working(tmp_path: Path) -> bool:
    log = tmp_path / "out" / "ledger" / "worker.log"
    return log.exists() and "is ready" in log.read_text()


def answered_once(tmp_path: Path, documents: int) -> None:
    found = [row["document_id"] for row in iter_rows(tmp_path / "out") if row["question_id"] == "area"]
    assert sorted(found) == sorted(f"d{n}" for n in range(documents))
    counts = read_manifest(tmp_path / "out")["counts"]
    assert counts == {"documents": documents, "answered": documents, "failed": 0, "quarantined": 0, "left": 0}


pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds processes through /proc")


def test_a_killed_worker_is_replaced_and_every_document_answered_once(tmp_path, model):
    run = start(tmp_path, model, 150)
    wait_for(lambda: working(tmp_path))
    time.sleep(0.3)
    os.kill(worker_pid(tmp_path), signal.SIGKILL)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    assert "killed by signal 9" in output
    answered_once(tmp_path, 150)
    assert not processes(tmp_path)
    assert not (tmp_path / "out" / "ledger").exists()


def test_a_killed_run_leaves_no_process_behind_and_continues(tmp_path, model):
    run = start(tmp_path, model, 150)
    wait_for(lambda: working(tmp_path))
    time.sleep(0.3)
    run.kill()
    run.wait()
    wait_for(lambda: not processes(tmp_path), seconds=15)
    again = start(tmp_path, model, 150)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    answered_once(tmp_path, 150)


def test_an_interrupted_run_ends_its_processes_and_exits_130(tmp_path, model):
    run = start(tmp_path, model, 400)
    wait_for(lambda: working(tmp_path))
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    assert "continues this run" in output
    assert not processes(tmp_path)


def test_an_unknown_model_is_said_by_its_name(tmp_path):
    run = start(tmp_path, Path("nosuch"), 1)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "model nosuch: not found; expected smollm2" in " ".join(output.split())


def test_python_gets_an_iterator_of_results(model):
    documents = ["The appeal is dismissed.", {"id": "second", "text": "The claim is allowed.", "court": "Assizes"}]
    results = {result.document_id: result for result in score(documents, QUESTIONS, model=str(model))}
    assert set(results) == {"0", "second"}
    assert results["second"].source.columns == {"court": "Assizes"}
    outcome = results["0"].outcome
    assert isinstance(outcome, Answered)
    assert sum(outcome.answers["area"].probabilities.values()) == pytest.approx(1, abs=1e-9)
