"""Why a document has no answers: the kinds of failure, as they stand in the ledger and in errors.jsonl."""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """What went wrong, in a word that a script can test."""

    INVALID_JSON = "invalid_json"  # the archive's line is not a JSON object
    INVALID_DOCUMENT = "invalid_document"  # no id, no text, or a field of the wrong type
    DUPLICATE_ID = "duplicate_id"  # an earlier document of the archive has this id
    EMPTY_DOCUMENT = "empty_document"
    INVALID_QUESTIONS = "invalid_questions"  # the document's own questions are not in the System One form
    UNSUPPORTED_QUESTION = "unsupported_question"  # valid, but this model family cannot ask it
    DOCUMENT_TOO_LONG = "document_too_long"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_LOST = "worker_lost"  # workers died or fell silent with this document in hand, as often as allowed
    INTERNAL = "internal"  # an unexpected exception, as often as allowed


class DocumentError(Exception):
    """A document that cannot be answered, and why; it never stops the run.

    Attributes: kind, and reason (one sentence: expected, found, what to do).
    """

    def __init__(self, kind: ErrorKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class ModelError(Exception):
    """A model that cannot be found, read or used; the message names the model and what to do."""


class UsageError(Exception):
    """Input or settings that a run cannot start with; the message says what was expected, found, and what to do."""
