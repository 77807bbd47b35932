"""A job, as it travels to a worker, and its outcome, as it travels back."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from worker.contract.answers import Answer
from worker.contract.errors import ErrorKind
from worker.contract.questions import QuestionSet, Text

State = Text  # text, or JSON that a family renders


def job_key(document_id: str) -> str:
    """A document's name in the ledger: fixed length and plain hex, so that no id can escape a Redis key or a path."""
    return hashlib.sha256(document_id.encode()).hexdigest()[:32]


class Job(BaseModel):
    """One document with its questions.

    `questions` is the document's own set; without it the run's set is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    document_id: str
    state: State
    questions: QuestionSet | None = None

    @property
    def key(self) -> str:
        return job_key(self.document_id)


class Source(BaseModel):
    """What the results carry through from the archive; no worker sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: int  # zero-based place in the archive
    columns: dict[str, Any] = {}


class Usage(BaseModel):
    """Tokens of one document: as if every question had its own full sequence, and as computed."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int
    computed_tokens: int


class Answered(BaseModel):
    """All of a document's questions answered, in the set's order."""

    model_config = ConfigDict(frozen=True)

    status: Literal["answered"] = "answered"
    answers: dict[str, Answer]
    usage: Usage


class Failed(BaseModel):
    """A document that has no answers, and why."""

    model_config = ConfigDict(frozen=True)

    status: Literal["failed"] = "failed"
    kind: ErrorKind
    reason: str


class Quarantined(BaseModel):
    """A document set aside because its attempts were used up without an outcome: it may harm whoever takes it."""

    model_config = ConfigDict(frozen=True)

    status: Literal["quarantined"] = "quarantined"
    kind: ErrorKind
    reason: str


Outcome = Annotated[Answered | Failed | Quarantined, Field(discriminator="status")]


class Result(BaseModel):
    """A job's outcome as the collector takes it from the ledger."""

    model_config = ConfigDict(frozen=True)

    job: str  # the job's key
    document_id: str
    source: Source
    attempt: int
    finished_at: float  # seconds since the epoch, by Redis's clock
    worker: str
    outcome: Outcome
