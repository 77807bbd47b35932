"""One archive, one question set, one model: from the archive's first line to the last durable result."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from producer.archive import Archive, Rejected, open_archive, scan
from producer.folder import RunFolder, read_manifest
from producer.progress import ProgressDisplay, Tally
from producer.session import ModelChoice, Session
from worker import __version__
from worker.contract import Job, ModelIdentity, QuestionSet, Source, UsageError
from worker.ledger import Ledger

Format = Literal["parquet", "jsonl", "csv"]

_BATCH = 64  # jobs offered to the ledger at once
_FLUSH_SECONDS = 20.0  # and always before results fill half of the window, so that the queue never runs dry


@dataclass(frozen=True)
class RunSettings:
    """All that `nightcourt run` is told."""

    archive: Path
    out: Path
    questions: QuestionSet | None = None
    choice: ModelChoice = field(default_factory=ModelChoice)
    format: Format = "parquet"
    limit: int | None = None
    redis_url: str | None = None
    workers: int | None = None
    quiet: bool = False

    def fingerprint(self) -> dict[str, Any]:
        """What must not change between two runs into one folder."""
        return {
            "archive": self.archive.resolve().name,
            "questions": self.questions.digest if self.questions else None,
            "model": self.choice.model,
            "readout": self.choice.readout,
            "dtype": self.choice.dtype,
            "device": self.choice.device.partition(":")[0],
        }


@dataclass(frozen=True)
class RunReport:
    """How a run ended: the folder's counts, and what this process saw."""

    out: Path
    counts: dict[str, int]
    tally: Tally
    seconds: float
    identity: ModelIdentity | None


def run(settings: RunSettings, console: Console) -> RunReport:
    """Score an archive into a run folder, or continue one.

    Raises UsageError or ModelError when it cannot start or go on; KeyboardInterrupt leaves a folder that continues.
    """
    started = time.monotonic()
    archive = open_archive(settings.archive)
    found = scan(archive, settings.limit)
    if found.documents + found.rejected == 0:
        raise UsageError(f"{settings.archive} holds no documents")
    if settings.questions is None and found.without_questions:
        raise UsageError(
            f"{found.without_questions} document(s) of {settings.archive} bring no questions of their own: "
            "give a question set with -q"
        )
    folder = RunFolder.open(
        settings.out, fingerprint=settings.fingerprint(), format=settings.format, columns=found.columns
    )
    try:
        folder.update(
            archive=str(settings.archive.resolve()),
            questions=settings.questions.as_map() if settings.questions else None,
            documents=found.documents + found.rejected,
            versions=_versions(),
        )
        folder.record_rejected(place for place in islice(archive.read(), settings.limit) if isinstance(place, Rejected))
        total = found.documents + found.rejected
        tally = Tally(total=total, done_before=total - folder.counts["left"])
        with ProgressDisplay(tally, console, quiet=settings.quiet) as display:
            if folder.counts["left"]:
                _score(settings, archive, folder, tally, display)
        identity = _stored_identity(settings.out)
        folder.update(
            timings={"seconds": round(time.monotonic() - started, 3), "documents_per_minute": tally.per_minute}
        )
        counts = dict(folder.counts)
    finally:
        folder.close()
    if not counts["left"]:
        shutil.rmtree(settings.out / "ledger", ignore_errors=True)  # all it held is in the results
    return RunReport(settings.out, counts, tally, time.monotonic() - started, identity)


def _score(settings: RunSettings, archive: Archive, folder: RunFolder, tally: Tally, display: ProgressDisplay) -> None:
    known = _stored_identity(settings.out)
    with Session(
        folder.run_id,
        settings.choice,
        settings.questions,
        settings.out / "ledger",
        redis_url=settings.redis_url,
        workers=settings.workers,
        identity=known.digest() if known else None,
    ) as session:
        if not session.worker_count:
            display.note(f"waiting for workers: nightcourt worker --model {settings.choice.model} --redis ...")
        jobs = _jobs(archive, folder, settings.limit)
        collector = Collector(session.ledger, folder, tally, settings.choice.model)
        offered: list[tuple[Job, Source]] = []
        try:
            while folder.counts["left"] - folder.buffered > 0:
                offered += islice(jobs, _BATCH - len(offered))
                settled = session.ledger.admit(offered)
                offered = offered[settled:]
                collector.collect(wait=0.0 if settled else 0.1)
                for note in session.watch():
                    display.note(note)
                if known is None and (known := session.ledger.identity()):
                    folder.update(identity=known.model_dump())
                display.update()
        finally:
            collector.flush()
        session.ledger.purge()


class Collector:
    """Moves results from the ledger into the run folder, and forgets them there once they are durable here."""

    def __init__(self, ledger: Ledger, folder: RunFolder, tally: Tally, model: str) -> None:
        self._ledger, self._folder, self._tally, self._model = ledger, folder, tally, model
        self._unforgotten: list[tuple[str, str]] = []
        self._flushed = time.monotonic()

    def collect(self, wait: float) -> None:
        for entry, result in self._ledger.collect(wait=wait):
            if self._folder.add(result, self._model):
                self._tally.add(result)
            self._unforgotten.append((entry, result.job))
        half_full = len(self._unforgotten) >= self._ledger.settings.window_jobs // 2
        if self._unforgotten and (half_full or time.monotonic() - self._flushed >= _FLUSH_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Make all that was collected durable, and only then forget it in Redis."""
        self._folder.flush()
        self._ledger.forget(self._unforgotten)
        self._unforgotten = []
        self._flushed = time.monotonic()


def _jobs(archive: Archive, folder: RunFolder, limit: int | None) -> Iterator[tuple[Job, Source]]:
    for place in islice(archive.read(), limit):
        if isinstance(place, Rejected):
            continue
        job = Job(document_id=place.document_id, state=place.state, questions=place.questions)
        if job.key not in folder.done:
            yield job, Source(position=place.position, columns=place.columns)


def _stored_identity(out: Path) -> ModelIdentity | None:
    stored = read_manifest(out).get("identity")
    return ModelIdentity.model_validate(stored) if stored else None


def _versions() -> dict[str, str]:
    return {"nightcourt": __version__, "python": platform.python_version(), "platform": platform.platform()}
