"""The one task: claim a job, score it under a renewed lease, commit the outcome."""

from __future__ import annotations

import logging
import threading
import traceback
from types import TracebackType
from typing import Protocol

from celery import Celery
from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError

from worker.contract import (
    Answered,
    DocumentError,
    ErrorKind,
    Failed,
    Job,
    ModelIdentity,
    QuestionSet,
    wire,
)
from worker.contract.job import Outcome
from worker.ledger.ledger import Claim, Ledger, ModelRefused
from worker.ledger.queue import SCORE_TASK

log = logging.getLogger(__name__)


class Scoring(Protocol):
    """What the task needs of a model; worker.scorer.Scorer is it."""

    @property
    def identity(self) -> ModelIdentity: ...

    def score(self, job: Job, questions: QuestionSet) -> Answered:
        """Answer every question, or raise DocumentError."""
        ...


class RenewedLease:
    """Keeps a claim's lease alive from a thread, while the main thread works."""

    def __init__(self, ledger: Ledger, claim: Claim) -> None:
        self._ledger, self._claim = ledger, claim
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> RenewedLease:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=self._ledger.settings.lease)

    def _renew(self) -> None:
        while not self._stop.wait(self._ledger.settings.renew_every):
            try:
                if not self._ledger.renew(self._claim):
                    log.warning("lease of job %s is lost; its outcome will be refused", self._claim.key)
                    return
            except RedisError as error:  # the next renewal may get through: the lease outlasts three of them
                log.warning("lease of job %s could not be renewed: %s", self._claim.key, error)


def register(app: Celery, redis: Redis, scorer: Scoring, worker: str) -> None:
    """Give the app its task, bound to this process's model."""
    ledgers: dict[str, tuple[Ledger, QuestionSet | None]] = {}

    @app.task(name=SCORE_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def score(job_id: str) -> None:
        """Score one job, named RUN/KEY; a message that names nothing of ours is dropped."""
        run_id, _, key = job_id.partition("/") if isinstance(job_id, str) else ("", "", "")
        if not (run_id.isalnum() and key.isalnum()):
            log.warning("dropped a message that is not ours: %.80r", job_id)
            return
        if run_id not in ledgers:
            attached = Ledger.attach(redis, run_id, app)
            if attached is None:
                log.warning("dropped a message of run %s, which this Redis does not hold", run_id)
                return
            ledgers[run_id] = attached
        ledger, questions = ledgers[run_id]
        attempt(ledger, key, questions, scorer, worker)


def attempt(ledger: Ledger, key: str, questions: QuestionSet | None, scorer: Scoring, worker: str) -> None:
    """One attempt at one job, from claim to commit."""
    try:
        claim = ledger.claim(key, worker, scorer.identity)
    except ModelRefused as refused:
        log.warning("%s", refused)
        return
    if claim is None:
        return
    with RenewedLease(ledger, claim):
        try:
            outcome = _outcome(claim, questions, scorer)
        except Exception as error:
            log.exception("job %s, attempt %d", key, claim.attempt)
            kind = ErrorKind.OUT_OF_MEMORY if _is_out_of_memory(error) else ErrorKind.INTERNAL
            last_line = traceback.format_exception_only(error)[-1].strip()
            ledger.fail(claim, kind, f"{last_line} (worker {worker})")
            return
        except BaseException:  # the process is being ended with this job in hand: it has done nothing wrong
            ledger.release(claim)
            raise
    if not ledger.commit(claim, outcome):
        log.warning("job %s was finished by another attempt; this outcome is dropped", key)


def _outcome(claim: Claim, questions: QuestionSet | None, scorer: Scoring) -> Outcome:
    try:
        job = wire.decode(Job, claim.payload)
    except ValidationError as error:
        return Failed(kind=ErrorKind.INVALID_DOCUMENT, reason=f"the job's payload is not a job: {error.errors()[0]}")
    asked = job.questions or questions
    if asked is None:
        return Failed(kind=ErrorKind.INVALID_QUESTIONS, reason="the document has no questions and the run has none")
    try:
        return scorer.score(job, asked)
    except DocumentError as error:
        return Failed(kind=error.kind, reason=error.reason)


def _is_out_of_memory(error: Exception) -> bool:
    # torch.OutOfMemoryError is told by name, because the ledger never imports torch.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
