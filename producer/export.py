"""Results as other programs want them: one row per document, or System One answers, in the archive's order."""

from __future__ import annotations

import csv
import io
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from producer.durable import replacing
from producer.folder import iter_errors, iter_rows, read_manifest
from producer.parts import column_schema, row_names, stored
from worker.contract import Answer, UsageError

BATCH = 1000  # documents written at once
ANSWER_FIELDS = ("type", "answer", "score", "confidence", "probabilities", "legend")


def export_wide(out: Path, file: Path) -> None:
    """One row per document: `id`, the source's columns, `<question>` and `<question>.p.<option>`, and `error`.

    A score has `<question>.score` too. CSV, Parquet or JSONL, by the file's suffix; written whole or not at all.
    Documents without answers have `kind: reason` in `error`. A name that stands twice gets `source.` or `question.`
    before it. Text is written exactly as it came: a CSV cell may begin with = + - or @, which a spreadsheet takes for
    a formula; import such columns as text.

    Raises UsageError for another suffix, a folder that is no run's, or a file that cannot be written.
    """
    manifest = read_manifest(out)
    write = WRITERS.get(file.suffix.lower())
    if write is None:
        raise UsageError(f"export to {file}: expected the suffix .csv, .parquet or .jsonl, found {file.suffix!r}")
    with _documents(out, manifest["columns"]) as documents:
        table = _WideTable(manifest["columns"], documents.options)
        with _writing(file) as target:
            write(target, table, map(table.row, documents.in_order()))


def export_systemone(out: Path, file: Path) -> None:
    """JSONL in the System One form: a line per document with `id`, `model`, `answers` and `usage`.

    A document without answers has `id` and `error` (kind, reason) instead. Written whole or not at all.
    """
    manifest = read_manifest(out)
    with _documents(out, manifest["columns"]) as documents, _writing(file) as target:
        for document in documents.in_order():
            target.write(orjson.dumps(_system_one(document), option=orjson.OPT_APPEND_NEWLINE))


class _Documents:
    """Results gathered per document on disk: what stays in memory is the questions and their options."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.options: dict[str, dict[str, str]] = {}  # question -> option -> the question's type
        database.execute("create table documents (position integer, content blob)")
        database.execute("create index by_position on documents (position)")

    def gather(self, out: Path, columns: dict[str, str]) -> None:
        names = row_names(columns)
        insert = "insert into documents values (?, ?)"
        for (position, document_id), group in groupby(
            iter_rows(out), lambda row: (row["position"], row["document_id"])
        ):
            rows = list(group)
            for row in rows:
                options = self.options.setdefault(row["question_id"], {})
                for option in row["probabilities"]:
                    options.setdefault(option, row["type"])
            document = {
                "id": document_id,
                "model": rows[0]["model"],
                "usage": {name: rows[0][name] for name in ("input_tokens", "computed_tokens")},
                "source": {column: rows[0][name] for column, name in names.items()},
                "answers": {row["question_id"]: {name: row[name] for name in ANSWER_FIELDS} for row in rows},
            }
            self._database.execute(insert, (position, orjson.dumps(document)))
        for error in iter_errors(out):
            document = {
                "id": error["document"],
                "source": error["source"],
                "error": {"kind": error["kind"], "reason": error["reason"]},
            }
            self._database.execute(insert, (error["position"], orjson.dumps(document)))

    def in_order(self) -> Iterator[dict[str, Any]]:
        for (content,) in self._database.execute("select content from documents order by position, rowid"):
            yield orjson.loads(content)


class _WideTable:
    """The wide table's columns, with names that stand once, and a document's row in them."""

    def __init__(self, columns: dict[str, str], options: dict[str, dict[str, str]]) -> None:
        self._source: dict[str, str] = {}  # source column -> name in the table
        self._answers: dict[str, str] = {}  # question -> name of its answer
        self._scores: dict[str, str] = {}
        self._probabilities: dict[tuple[str, str], str] = {}
        self.kinds = {"id": "string", "error": "string"}
        for column, kind in columns.items():
            self._source[column] = self._name(column, "source.", kind)
        for question, found in options.items():
            self._answers[question] = self._name(question, "question.", "string")
            for option in found:
                self._probabilities[question, option] = self._name(f"{question}.p.{option}", "question.", "double")
            if "score" in found.values():
                self._scores[question] = self._name(f"{question}.score", "question.", "double")
        self.kinds["error"] = self.kinds.pop("error")  # it stands last

    def _name(self, wanted: str, prefix: str, kind: str) -> str:
        while wanted in self.kinds:
            wanted = prefix + wanted
        self.kinds[wanted] = kind
        return wanted

    def row(self, document: dict[str, Any]) -> dict[str, Any]:
        cells = dict.fromkeys(self.kinds)
        cells["id"] = document["id"]
        for column, name in self._source.items():
            cells[name] = document["source"].get(column)
        for question, answer in document.get("answers", {}).items():
            cells[self._answers[question]] = answer["answer"]
            if answer["score"] is not None:
                cells[self._scores[question]] = answer["score"]
            for option, p in answer["probabilities"].items():
                cells[self._probabilities[question, option]] = p
        if error := document.get("error"):
            cells["error"] = f"{error['kind']}: {error['reason']}"
        return cells

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with JSON cells as their text."""
        return {name: stored(value, self.kinds[name]) for name, value in row.items()}


def _write_csv(target: BinaryIO, table: _WideTable, rows: Iterator[dict[str, Any]]) -> None:
    text = io.TextIOWrapper(target, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(table.kinds)
    for row in map(table.stored, rows):
        writer.writerow(str(cell).lower() if isinstance(cell, bool) else cell for cell in row.values())
    text.detach()


def _write_parquet(target: BinaryIO, table: _WideTable, rows: Iterator[dict[str, Any]]) -> None:
    schema = column_schema(table.kinds)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(pa.Table.from_pylist([table.stored(row) for row in batch], schema=schema))


def _write_jsonl(target: BinaryIO, table: _WideTable, rows: Iterator[dict[str, Any]]) -> None:
    for row in rows:
        target.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


WRITERS: dict[str, Callable[[BinaryIO, _WideTable, Iterator[dict[str, Any]]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
}


def _system_one(document: dict[str, Any]) -> dict[str, Any]:
    if "error" in document:
        return {"id": document["id"], "error": document["error"]}
    usage = document["usage"]
    answers = {name: Answer.model_validate(answer).system_one() for name, answer in document["answers"].items()}
    return {
        "id": document["id"],
        "model": document["model"],
        "answers": answers,
        "usage": {
            "input_tokens": usage["input_tokens"],
            "output_tokens": 0,
            "x_computed_tokens": usage["computed_tokens"],
        },
    }


@contextmanager
def _documents(out: Path, columns: dict[str, str]) -> Iterator[_Documents]:
    with tempfile.TemporaryDirectory(prefix="nightcourt-export-") as folder:
        database = sqlite3.connect(Path(folder) / "documents.sqlite", isolation_level=None)
        try:
            database.execute("pragma journal_mode = off")
            database.execute("pragma synchronous = off")
            database.execute("begin")
            documents = _Documents(database)
            documents.gather(out, columns)
            database.execute("commit")
            yield documents
        finally:
            database.close()


@contextmanager
def _writing(file: Path) -> Iterator[BinaryIO]:
    try:
        with replacing(file) as target:
            yield target
    except OSError as error:
        raise UsageError(
            f"export to {file}: cannot be written ({error.strerror or error}); choose another file"
        ) from error
