"""The run folder: results, errors and manifest on disk, the durable truth that a run continues from."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import orjson
from filelock import FileLock, Timeout

from producer.archive.base import Rejected, job_hash
from producer.durable import replacing, sync_folder
from producer.parts import RESULTS, Format, document_ids, part_files, read_part, rows_of, write_part
from worker.contract import Answered, Failed, Quarantined, Result, UsageError, job_key

VERSION = 1
MANIFEST, ERRORS, LOCK = "manifest.json", "errors.jsonl", ".lock"
OWNED = {"version", "run_id", "created_at", "updated_at", "fingerprint", "format", "columns", "counts"}


class DoneJobs:
    """Jobs with an outcome, by key; 64 bits of each are kept, so that a million documents take some 60 MB."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __contains__(self, key: str) -> bool:
        return job_hash(key) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, key: str) -> bool:
        """False when the job was there already."""
        before = len(self._hashes)
        self._hashes.add(job_hash(key))
        return len(self._hashes) > before


class RunFolder:
    """One run's folder, held by one process at a time.

    A document is done when its rows stand in a part or its failure in errors.jsonl; the manifest's counts follow from
    these and never decide anything. `documents` in the manifest (set by `update`: all places of the archive, rejected
    ones included) is what the counts add up to.
    """

    def __init__(self, path: Path, format: Format) -> None:
        self.path = path
        self.format = format
        self.done = DoneJobs()
        self._manifest: dict[str, Any] = {}
        self._columns: dict[str, str] = {}
        self._rows: list[dict[str, Any]] = []
        self._errors: list[dict[str, Any]] = []
        self._buffered: dict[str, int] = {}
        self._durable = {"answered": 0, "failed": 0, "quarantined": 0, "rejected": 0}
        self._next_part = 0
        self._rejected_rewritten = False
        self._lock = FileLock(path / LOCK)

    @classmethod
    def open(cls, path: Path, *, fingerprint: dict[str, Any], format: Format, columns: dict[str, str]) -> RunFolder:
        """Create a run's folder, or continue the run that it holds.

        Raises UsageError when the folder cannot be used, when another process holds it, or when its run had another
        fingerprint, format or type of a column; each difference is named. New columns are added.
        """
        if format not in get_args(Format):
            raise UsageError(f"format {format!r} is unknown; expected one of {', '.join(get_args(Format))}")
        _usable(path)
        folder = cls(path, format)
        try:
            folder._lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(f"{path} is in use by another run; wait for its end, or choose another -o") from error
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            folder._load(fingerprint, columns)
        except OSError as error:
            folder.close()
            raise _cannot_write(path, error) from error
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def run_id(self) -> str:
        return str(self._manifest["run_id"])

    def has(self, document_id: str) -> bool:
        """Whether a document has its outcome, durable or buffered."""
        return job_key(document_id) in self.done

    @property
    def buffered(self) -> int:
        """Documents added since the last flush."""
        return sum(self._buffered.values())

    @property
    def counts(self) -> dict[str, int]:
        """What is durable: documents = answered + failed + quarantined + left. Rejected places count as failed."""
        failed = self._durable["failed"] + self._durable["rejected"]
        ended = self._durable["answered"] + failed + self._durable["quarantined"]
        documents = max(ended, self._manifest.get("documents", 0))
        return {
            "documents": documents,
            "answered": self._durable["answered"],
            "failed": failed,
            "quarantined": self._durable["quarantined"],
            "left": documents - ended,
        }

    def add(self, result: Result, model_name: str) -> bool:
        """Buffer a document's outcome; False, and nothing more, when it is already done.

        Raises UsageError when a source column is not of its type: the archive changed under the run.
        """
        if result.job in self.done:
            return False
        outcome = result.outcome
        if isinstance(outcome, Answered):
            self._rows += rows_of(result, outcome, model_name, self._columns)
        else:
            self._errors.append(_error(result, outcome))
        self.done.add(result.job)
        self._buffered[outcome.status] = self._buffered.get(outcome.status, 0) + 1
        return True

    def flush(self) -> None:
        """Make everything added durable: a new part, then errors.jsonl, then the manifest's counts.

        Raises UsageError when the disk refuses; what was not written stays buffered, and a later run scores it again.
        """
        try:
            if self._rows:
                part = self.path / RESULTS / f"part-{self._next_part:05d}.{self.format}"
                with replacing(part) as file:
                    write_part(file, self.format, self._columns, self._rows)
                self._next_part += 1
                self._rows = []
                self._settle("answered")
            if self._errors:
                self._append_errors(self._errors)
                self._errors = []
                self._settle("failed", "quarantined")
            self._write_manifest()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def record_rejected(self, rejected: Iterable[Rejected]) -> None:
        """Replace the archive-level errors of earlier runs with these; a second call in one run adds to the first."""
        at = _now()
        lines = (
            {
                "document": place.document_id,
                "kind": place.kind,
                "reason": place.reason,
                "status": "rejected",
                "attempts": 0,
                "position": place.position,
                "at": at,
                "source": {},
            }
            for place in rejected
        )
        try:
            if self._rejected_rewritten:
                self._durable["rejected"] += self._append_errors(lines)
            else:
                self._durable["rejected"] = self._rewrite_rejected(lines)
                self._rejected_rewritten = True
            self._write_manifest()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def update(self, **fields: Any) -> None:
        """Set sections of the manifest (documents, identity, versions, timings, archive, questions, ...)."""
        if owned := OWNED & fields.keys():
            raise ValueError(f"the run folder keeps {', '.join(sorted(owned))} itself")
        try:
            self._manifest |= fields
            self._write_manifest()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        """Let go of the folder; what is buffered and not flushed is dropped."""
        self._lock.release()

    def _load(self, fingerprint: dict[str, Any], columns: dict[str, str]) -> None:
        for leftover in (*self.path.glob("*.tmp"), *(self.path / RESULTS).glob("*.tmp")):
            leftover.unlink()
        (self.path / RESULTS).mkdir(exist_ok=True)
        if (self.path / MANIFEST).exists():
            self._manifest = read_manifest(self.path)
            self._refuse_differences(fingerprint, columns)
        else:
            self._manifest = {"version": VERSION, "run_id": secrets.token_hex(8), "created_at": _now()}
        self._columns = self._manifest.get("columns", {}) | columns
        self._manifest |= {"fingerprint": fingerprint, "format": self.format, "columns": self._columns}
        self._rebuild()
        self._write_manifest()

    def _refuse_differences(self, fingerprint: dict[str, Any], columns: dict[str, str]) -> None:
        old = self._manifest
        known = {name: kind for name, kind in old["columns"].items() if name in columns}
        now = {name: kind for name, kind in columns.items() if name in known}
        found = differences(old["fingerprint"], fingerprint)
        found += differences({"format": old["format"]}, {"format": self.format})
        found += differences(known, now, "column ")
        if found:
            raise UsageError(
                f"{self.path} holds a run with other settings:\n  "
                + "\n  ".join(found)
                + "\nchoose another -o for a new run, or use the old settings to continue this one"
            )

    def _rebuild(self) -> None:
        """Take done and counts from the parts and errors.jsonl."""
        for part in part_files(self.path, self.format):
            self._next_part = int(part.stem.removeprefix("part-")) + 1
            for document_id in document_ids(part, self.format, self._columns):
                self._durable["answered"] += self.done.add(job_key(document_id))
        _mend_last_line(self.path / ERRORS)
        for error in iter_errors(self.path):
            if error["status"] == "rejected":
                self._durable["rejected"] += 1
            else:
                self._durable[error["status"]] += self.done.add(job_key(error["document"]))

    def _settle(self, *statuses: str) -> None:
        for status in statuses:
            self._durable[status] += self._buffered.pop(status, 0)

    def _write_manifest(self) -> None:
        self._manifest |= {"updated_at": _now(), "counts": self.counts}
        with replacing(self.path / MANIFEST) as file:
            file.write(orjson.dumps(self._manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))

    def _append_errors(self, errors: Iterable[dict[str, Any]]) -> int:
        """Append and fsync; a failed append leaves no partial line behind."""
        written = 0
        with (self.path / ERRORS).open("ab") as file:
            start = file.tell()
            try:
                for error in errors:
                    file.write(orjson.dumps(error, option=orjson.OPT_APPEND_NEWLINE))
                    written += 1
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), start)
                raise
        sync_folder(self.path)
        return written

    def _rewrite_rejected(self, lines: Iterable[dict[str, Any]]) -> int:
        written = 0
        with replacing(self.path / ERRORS) as file:
            for error in iter_errors(self.path):
                if error["status"] != "rejected":
                    file.write(orjson.dumps(error, option=orjson.OPT_APPEND_NEWLINE))
            for line in lines:
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                written += 1
        return written


def read_manifest(path: Path) -> dict[str, Any]:
    """A run folder's manifest; raises UsageError when the folder is none, or its manifest is damaged."""
    try:
        manifest = orjson.loads((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{path} is not a run folder (no {MANIFEST}); expected the -o of a run") from error
    except OSError as error:
        raise UsageError(f"{path / MANIFEST} cannot be read ({error.strerror})") from error
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path / MANIFEST} is damaged ({error}); restore it, or choose another -o") from error
    if not isinstance(manifest, dict) or not {"run_id", "fingerprint", "format", "columns"} <= manifest.keys():
        raise UsageError(f"{path / MANIFEST} was not written by a run; choose another -o")
    if manifest.get("version") != VERSION:
        raise UsageError(
            f"{path / MANIFEST} has version {manifest.get('version')}, this program reads {VERSION}; choose another -o"
        )
    return manifest


def iter_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Every result row, part by part, as the same Python values whatever the format on disk."""
    manifest = read_manifest(path)
    for part in part_files(path, manifest["format"]):
        yield from read_part(part, manifest["format"], manifest["columns"])


def iter_errors(path: Path) -> Iterator[dict[str, Any]]:
    """Every line of errors.jsonl; a last line cut short by a crash is passed over."""
    file = path / ERRORS
    if not file.exists():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if line.endswith(b"\n"):
                    raise UsageError(f"{file} line {number} is damaged ({error}); repair or remove the line") from error


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two nested settings: a line each, with the old and the new value."""
    before, after = _flat(old), _flat(new)
    names = [*before, *(name for name in after if name not in before)]
    found = [
        f"{prefix}{name}: was {_short(before.get(name))}, now {_short(after.get(name))}"
        for name in names
        if before.get(name) != after.get(name)
    ]
    if not found and list(before) != list(after):
        moved = next(name for name, other in zip(before, after, strict=True) if name != other)
        found = [f"{prefix}{moved}: the values are the same, but their order changed here"]
    return found


def _usable(path: Path) -> None:
    """Make the folder if need be; raise UsageError unless it is empty or a run's, and writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {child.name for child in path.iterdir()}
        if MANIFEST not in names and (foreign := names - {LOCK, RESULTS, MANIFEST + ".tmp"}):
            raise UsageError(f"{path} is not empty and not a run folder (it holds {min(foreign)!r}); choose another -o")
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{path} is a file, or lies below one; expected a folder; choose another -o") from error
    except OSError as error:
        raise _cannot_write(path, error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} is not writable; change its permissions, or choose another -o")


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{error.filename or path}: cannot be written ({error.strerror or error}); free space or give access, "
        "or choose another -o; a run started again continues from what is saved"
    )


def _error(result: Result, outcome: Failed | Quarantined) -> dict[str, Any]:
    return {
        "document": result.document_id,
        "kind": outcome.kind,
        "reason": outcome.reason,
        "status": outcome.status,
        "attempts": result.attempt,
        "position": result.source.position,
        "at": datetime.fromtimestamp(result.finished_at, UTC).isoformat(),
        "source": result.source.columns,
    }


def _mend_last_line(file: Path) -> None:
    """End a last line that a crash cut short: kept when it is whole, else removed."""
    if not file.exists() or not (content := file.read_bytes()) or content.endswith(b"\n"):
        return
    start = content.rfind(b"\n") + 1
    with file.open("r+b") as lines:
        try:
            orjson.loads(content[start:])
        except orjson.JSONDecodeError:
            lines.truncate(start)
        else:
            lines.seek(0, os.SEEK_END)
            lines.write(b"\n")
        os.fsync(lines.fileno())


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names and JSON values."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = orjson.dumps(value).decode()
    return flat


def _short(value: str | None) -> str:
    if value is None:
        return "not set"
    return value if len(value) <= 80 else f"{value[:77]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
