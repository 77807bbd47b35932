"""What every archive gives: its documents as a stream, and in their places what could not be read as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from worker.contract import ErrorKind, QuestionSet, State, job_key, wire

INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Entry:
    """One document as read. `columns` are its other fields, in source order."""

    position: int  # zero-based place in the archive
    document_id: str
    state: State
    questions: QuestionSet | None  # the document's own; None: the run's set is asked
    columns: dict[str, Any]


@dataclass(frozen=True)
class Rejected:
    """A place of the archive that is not a document. Where its id is not known, `document_id` names the place."""

    position: int
    document_id: str
    kind: ErrorKind
    reason: str


class Archive(ABC):
    """Documents as a stream. Memory is constant apart from 8 bytes a document for the ids already seen."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Iterator[Entry | Rejected]:
        """Every place in order; of two documents with one id, the second is rejected."""
        seen: set[int] = set()
        for place in self._places():
            if isinstance(place, Entry):
                key = id_hash(place.document_id)
                if key in seen:
                    yield Rejected(
                        place.position,
                        place.document_id,
                        ErrorKind.DUPLICATE_ID,
                        f"{self._where(place)}: the id {place.document_id!r} was used by an earlier document of this "
                        "archive; the earlier one is scored; give this one an id of its own",
                    )
                    continue
                seen.add(key)
            yield place

    @abstractmethod
    def _places(self) -> Iterator[Entry | Rejected]:
        """Every place in order, duplicate ids included."""

    @abstractmethod
    def _where(self, entry: Entry) -> str:
        """The file, and the line where there are lines, that the latest entry came from."""


@dataclass(frozen=True)
class ArchiveScan:
    """What a pass over an archive found; `columns` maps each source column to its type in the results."""

    documents: int
    rejected: int
    characters: int  # of all documents' texts; of a JSON state, the length of its JSON
    columns: dict[str, str]  # bool, int64, double, string or json, in order of first appearance
    without_questions: int


def scan(archive: Archive, limit: int | None = None) -> ArchiveScan:
    """Read an archive once, up to `limit` places (documents and rejected places both count)."""
    documents = rejected = characters = without_questions = 0
    kinds: dict[str, set[str]] = {}
    for place in islice(archive.read(), limit):
        if isinstance(place, Rejected):
            rejected += 1
            continue
        documents += 1
        characters += len(place.state if isinstance(place.state, str) else wire.encode(place.state).decode())
        without_questions += place.questions is None
        for name, value in place.columns.items():
            kinds.setdefault(name, set()).update(_kind(value))
    columns = {name: _column_type(found) for name, found in kinds.items()}
    return ArchiveScan(documents, rejected, characters, columns, without_questions)


def id_hash(document_id: str) -> int:
    """64 bits of a document's job key: what is kept in memory of a document already seen."""
    return job_hash(job_key(document_id))


def job_hash(key: str) -> int:
    """The same 64 bits, from the job's key."""
    return int(key[:16], 16)


def _kind(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("bool",)
    if isinstance(value, int):
        return ("int64",) if value in INT64 else ("json",)
    if isinstance(value, float):
        return ("double",)
    return ("string",) if isinstance(value, str) else ("json",)


def _column_type(kinds: set[str]) -> str:
    if not kinds:
        return "string"
    if kinds == {"int64", "double"}:
        return "double"
    return next(iter(kinds)) if len(kinds) == 1 else "json"
