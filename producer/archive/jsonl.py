"""Archives that are one JSONL file: a document, or a whole System One request, on each line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from producer.archive.base import Archive, Entry, Rejected
from producer.questions import parse_questions
from worker.contract import DocumentError, ErrorKind, QuestionSet, State, UsageError

BOM = b"\xef\xbb\xbf"


class JsonlArchive(Archive):
    """Lines with `id`, `text` or `state`, perhaps `questions`; all other fields are carried through.

    A line with `questions` and no `id` (a log of requests) is named by its line: `line-7`. Blank lines are no places.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._line = 0
        self._last_questions: tuple[bytes, QuestionSet] | None = None

    def _places(self) -> Iterator[Entry | Rejected]:
        position = 0
        with self.path.open("rb") as lines:
            for number, raw in enumerate(lines, start=1):
                line = (raw.removeprefix(BOM) if number == 1 else raw).strip()
                if not line:
                    continue
                self._line = number
                yield self._place(position, number, line)
                position += 1

    def _where(self, entry: Entry) -> str:
        return f"{self.path.name} line {self._line}"

    def _place(self, position: int, number: int, line: bytes) -> Entry | Rejected:
        name, where = f"line {number}", f"{self.path.name} line {number}"
        try:
            fields = _object(line)
            name = _document_id(fields, number)
            state = _state(fields)
            questions = self._questions(fields.get("questions"))
        except DocumentError as error:
            return Rejected(position, name, error.kind, f"{where}: {error.reason}")
        own = {"id", "text", "state", "questions"}
        columns = {field: value for field, value in fields.items() if field not in own}
        return Entry(position, name, state, questions, columns)

    def _questions(self, value: Any) -> QuestionSet | None:
        if value is None:
            return None
        written = orjson.dumps(value)  # not the dict: equal dicts may differ in the order of options
        if self._last_questions and self._last_questions[0] == written:
            return self._last_questions[1]
        try:
            questions = parse_questions(value, "its own questions")
        except UsageError as error:
            raise DocumentError(ErrorKind.INVALID_QUESTIONS, str(error)) from error
        self._last_questions = written, questions
        return questions


def _object(line: bytes) -> dict[str, Any]:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(
            ErrorKind.INVALID_JSON, f"expected UTF-8, found byte 0x{line[error.start]:02x} at {error.start + 1}"
        ) from error
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DocumentError(
            ErrorKind.INVALID_JSON, f"expected one JSON object, found invalid JSON ({error.msg} at {error.colno})"
        ) from error
    if not isinstance(fields, dict):
        raise DocumentError(ErrorKind.INVALID_JSON, f"expected a JSON object, found {json_kind(fields)}")
    return fields


def _document_id(fields: dict[str, Any], number: int) -> str:
    value = fields.get("id")
    if value is None and fields.get("questions") is not None:
        return f"line-{number}"
    if value is None:
        raise DocumentError(ErrorKind.INVALID_DOCUMENT, "the document has no `id`; expected text or a whole number")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DocumentError(ErrorKind.INVALID_DOCUMENT, f"`id` is {json_kind(value)}; expected text or a whole number")
    if not str(value).strip():
        raise DocumentError(ErrorKind.INVALID_DOCUMENT, "`id` is empty; expected text or a whole number")
    return str(value)


def _state(fields: dict[str, Any]) -> State:
    given = [name for name in ("text", "state") if fields.get(name) is not None]
    if len(given) != 1:
        found = "both; keep one" if given else "neither"
        raise DocumentError(ErrorKind.INVALID_DOCUMENT, f"expected the document in `text` or in `state`, found {found}")
    value = fields[given[0]]
    if not isinstance(value, str | dict | list):
        raise DocumentError(
            ErrorKind.INVALID_DOCUMENT, f"`{given[0]}` is {json_kind(value)}; expected text, an object or an array"
        )
    if not (value.strip() if isinstance(value, str) else value):
        raise DocumentError(ErrorKind.EMPTY_DOCUMENT, f"`{given[0]}` is empty; there is nothing to ask about")
    return value


def json_kind(value: Any) -> str:
    """A JSON value's kind in words for a message."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)
