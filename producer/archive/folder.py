"""Archives that are a folder of `.txt` files, however deep: a document a file, named by its path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from producer.archive.base import Archive, Entry, Rejected
from worker.contract import DocumentError, ErrorKind

SUFFIX = ".txt"


class FolderArchive(Archive):
    """UTF-8 text files in sorted order; the id is the path below the folder, forward slashes, without `.txt`.

    Symbolic links are not followed, so no document comes from outside the folder: a link in a document's place is
    rejected, and so is a link to a folder. Other files are no places.
    """

    def _places(self) -> Iterator[Entry | Rejected]:
        for position, file in enumerate(_text_files(self.path)):
            name = file.relative_to(self.path).as_posix()
            shown = name.encode("utf-8", "backslashreplace").decode()
            try:
                if shown != name:
                    raise DocumentError(ErrorKind.INVALID_DOCUMENT, "the file's name is not UTF-8; rename it")
                text = _text(file)
            except DocumentError as error:
                yield Rejected(position, _without_suffix(shown), error.kind, f"{shown}: {error.reason}")
            else:
                yield Entry(position, _without_suffix(name), text, None, {})

    def _where(self, entry: Entry) -> str:
        return f"{entry.document_id}{SUFFIX}"


def has_text_file(folder: Path) -> bool:
    """Whether a folder has at least one place to read."""
    return next(_text_files(folder), None) is not None


def _text_files(folder: Path) -> Iterator[Path]:
    """Text files, and what stands in their way: links, and folders that cannot be listed."""
    try:
        children = sorted(folder.iterdir(), key=lambda child: child.name)
    except OSError:
        yield folder
        return
    for child in children:
        if child.is_symlink():
            if child.suffix.lower() == SUFFIX or child.is_dir():
                yield child
        elif child.is_dir():
            yield from _text_files(child)
        elif child.suffix.lower() == SUFFIX:
            yield child


def _text(file: Path) -> str:
    if file.is_symlink():
        raise DocumentError(
            ErrorKind.INVALID_DOCUMENT, "a symbolic link, which is not followed; put the file itself into the folder"
        )
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            ErrorKind.INVALID_DOCUMENT,
            f"expected UTF-8 text, found byte 0x{error.object[error.start]:02x} at {error.start + 1}; convert the file",
        ) from error
    except OSError as error:
        raise DocumentError(ErrorKind.INVALID_DOCUMENT, f"cannot be read ({error.strerror})") from error
    if not text.strip():
        raise DocumentError(ErrorKind.EMPTY_DOCUMENT, "the file is empty; there is nothing to ask about")
    return text


def _without_suffix(name: str) -> str:
    return name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name
