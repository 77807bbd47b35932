"""Parts of results: rows of a document's answers, and how they stand in Parquet, JSON Lines and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from producer.archive.base import INT64
from worker.contract import Answered, Result, UsageError

Format = Literal["parquet", "jsonl", "csv"]
RESULTS = "results"

ROW_FIELDS: dict[str, Any] = {
    "document_id": pa.string(),
    "question_id": pa.string(),
    "type": pa.string(),
    "answer": pa.string(),
    "score": pa.float64(),
    "confidence": pa.float64(),
    "probabilities": pa.map_(pa.string(), pa.float64()),
    "model": pa.string(),
    "input_tokens": pa.int64(),
    "computed_tokens": pa.int64(),
    "attempt": pa.int64(),
    "finished_at": pa.timestamp("us", tz="UTC"),
    "position": pa.int64(),
    "legend": pa.list_(pa.string()),
}


COLUMN_TYPES: dict[str, Any] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
}


PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {"bool": bool, "int64": int, "double": (int, float), "string": str}


def row_names(columns: Iterable[str]) -> dict[str, str]:
    """Where each source column stands in a row: under its own name, or after `source.` when a row has that already."""
    names: dict[str, str] = {}
    taken = {*ROW_FIELDS, *columns}
    for column in columns:
        name = column
        if column in ROW_FIELDS:
            while name in taken:
                name = f"source.{name}"
            taken.add(name)
        names[column] = name
    return names


def column_schema(columns: dict[str, str]) -> Any:
    """The Arrow schema of source columns; json is stored as its text."""
    return pa.schema([(name, COLUMN_TYPES[kind]) for name, kind in columns.items()])


def stored(value: Any, kind: str) -> Any:
    """A source value as Arrow holds it."""
    return orjson.dumps(value).decode() if kind == "json" and value is not None else value


def part_files(path: Path, format: str) -> list[Path]:
    """The run's parts, oldest first."""
    return sorted(
        (part for part in (path / RESULTS).glob(f"part-*.{format}") if part.stem.removeprefix("part-").isdigit()),
        key=lambda part: int(part.stem.removeprefix("part-")),
    )


def rows_of(result: Result, outcome: Answered, model_name: str, columns: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One row a question, with the fields of ROW_FIELDS and then the source's columns."""
    source = _source_values(result, columns)
    for question_id, answer in outcome.answers.items():
        legend = answer.legend and [
            text if isinstance(text, str) else orjson.dumps(text).decode() for text in answer.legend
        ]
        yield {
            "document_id": result.document_id,
            "question_id": question_id,
            "type": answer.type,
            "answer": answer.answer,
            "score": answer.score,
            "confidence": answer.confidence,
            "probabilities": answer.probabilities,
            "model": model_name,
            "input_tokens": outcome.usage.input_tokens,
            "computed_tokens": outcome.usage.computed_tokens,
            "attempt": result.attempt,
            "finished_at": datetime.fromtimestamp(result.finished_at, UTC),
            "position": result.source.position,
            "legend": legend,
        } | source


def _source_values(result: Result, columns: dict[str, str]) -> dict[str, Any]:
    given = result.source.columns
    for name, value in given.items():
        kind = columns.get(name)
        fits = kind == "json" or value is None or (kind is not None and isinstance(value, PYTHON_TYPES[kind]))
        if isinstance(value, int) and kind == "int64":
            fits = not isinstance(value, bool) and value in INT64
        elif isinstance(value, bool):
            fits = kind in ("bool", "json")
        if not fits:
            raise UsageError(
                f"document {result.document_id!r}: column {name!r} was {kind or 'absent'} when the run started, "
                f"found {type(value).__name__}; the archive changed meanwhile; start again with another -o"
            )
    values: dict[str, Any] = {name: given.get(name) for name in columns}
    for name, kind in columns.items():
        if kind == "double" and values[name] is not None:
            values[name] = float(values[name])
    return {row_name: values[name] for name, row_name in row_names(columns).items()}


def write_part(file: BinaryIO, format: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    if format == "jsonl":
        for row in rows:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        return
    kinds = {row_name: columns[name] for name, row_name in row_names(columns).items()}
    schema = _part_schema(format, kinds)
    arrays = []
    for field in schema:
        values = [_cell(row[field.name], field.name, kinds.get(field.name), format) for row in rows]
        arrays.append(pa.array(values, field.type))
    table = pa.Table.from_arrays(arrays, schema=schema)
    if format == "csv":
        pa_csv.write_csv(table, file)
    else:
        pq.write_table(table, file, compression="zstd")


def _part_schema(format: str, kinds: dict[str, str]) -> Any:
    """CSV has no maps, lists or times: their text stands for them."""
    as_text = {"probabilities", "legend", "finished_at"} if format == "csv" else set()
    fields = {name: pa.string() if name in as_text else kind for name, kind in ROW_FIELDS.items()}
    return pa.schema(list((fields | {name: COLUMN_TYPES[kind] for name, kind in kinds.items()}).items()))


def _cell(value: Any, name: str, kind: str | None, format: str) -> Any:
    if value is None or kind is not None:
        return stored(value, kind or "")
    if format == "csv":
        if name in ("probabilities", "legend"):
            return orjson.dumps(value).decode()
        return value.isoformat() if name == "finished_at" else value
    return list(value.items()) if name == "probabilities" else value


def document_ids(part: Path, format: str, columns: dict[str, str]) -> Iterator[str]:
    if format != "parquet":
        yield from (row["document_id"] for row in read_part(part, format, columns))
        return
    with _readable(part), pq.ParquetFile(part) as file:
        for batch in file.iter_batches(columns=["document_id"]):
            yield from batch.column(0).to_pylist()


def read_part(part: Path, format: str, columns: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A part's rows as they were added; a column that the run did not have yet is None."""
    kinds = {row_name: columns[name] for name, row_name in row_names(columns).items()}
    names = [*ROW_FIELDS, *kinds]
    with _readable(part):
        for raw in _raw_rows(part, format, kinds):
            row: dict[str, Any] = {name: raw.get(name) for name in names}
            if format == "csv":
                row["probabilities"] = orjson.loads(row["probabilities"])
                row["legend"] = row["legend"] and orjson.loads(row["legend"])
            row["probabilities"] = dict(row["probabilities"])
            if format != "parquet":
                row["finished_at"] = datetime.fromisoformat(row["finished_at"])
            if format != "jsonl":
                row |= {
                    name: orjson.loads(row[name])
                    for name, kind in kinds.items()
                    if kind == "json" and row[name] is not None
                }
            yield row


def _raw_rows(part: Path, format: str, kinds: dict[str, str]) -> Iterator[dict[str, Any]]:
    if format == "jsonl":
        with part.open("rb") as lines:
            yield from map(orjson.loads, lines)
    elif format == "parquet":
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    else:
        schema = _part_schema(format, kinds)
        table = pa_csv.read_csv(
            part,
            # a block must hold the longest row; a part is small, so one block holds the part
            read_options=pa_csv.ReadOptions(block_size=min(part.stat().st_size + 1, 2**31 - 1)),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=schema,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true"],
                false_values=["false"],
            ),
        )
        for batch in table.to_batches(max_chunksize=4096):
            yield from batch.to_pylist()


@contextmanager
def _readable(part: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise UsageError(
            f"{part} cannot be read ({' '.join(str(error).split())}); remove it to have its documents scored again"
        ) from error
