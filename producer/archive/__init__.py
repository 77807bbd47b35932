"""Archives of documents: which reader a path needs, and the one interface that all readers share."""

from __future__ import annotations

from pathlib import Path

from producer.archive.base import Archive, ArchiveScan, Entry, Rejected, id_hash, scan
from producer.archive.folder import FolderArchive, has_text_file
from producer.archive.jsonl import BOM, JsonlArchive
from worker.contract import UsageError

__all__ = ["Archive", "ArchiveScan", "Entry", "Rejected", "id_hash", "open_archive", "scan"]

JSONL_SUFFIXES = {".jsonl", ".ndjson"}
EXPECTED = "expected a .jsonl file or a folder of .txt files"


def open_archive(path: Path) -> Archive:
    """The reader for a path. Raises UsageError for what is missing, unreadable, empty, or of no known kind."""
    try:
        if path.is_dir():
            return _open_folder(path)
        if path.is_file():
            return _open_file(path)
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"archive {path}: cannot be read ({error.strerror}); check its permissions") from error
    if exists:
        raise UsageError(f"archive {path}: neither a file nor a folder; {EXPECTED}")
    raise UsageError(f"archive {path}: not found; {EXPECTED}")


def _open_folder(path: Path) -> Archive:
    next(path.iterdir(), None)  # an unreadable folder is an error of the whole archive, not of a document
    if not has_text_file(path):
        raise UsageError(f"archive {path}: the folder has no .txt file, at any depth; {EXPECTED}")
    return FolderArchive(path)


def _open_file(path: Path) -> Archive:
    if path.suffix.lower() not in JSONL_SUFFIXES:
        raise UsageError(
            f"archive {path}: files of kind {path.suffix or 'without a suffix'!r} are not read; {EXPECTED}"
        )
    with path.open("rb") as lines:
        if not any(line.removeprefix(BOM).strip() for line in lines):
            raise UsageError(f"archive {path}: the file is empty; expected a JSON object on each line")
    return JsonlArchive(path)
