"""Records a real terminal session as docs/run.svg: `python docs/picture.py` (needs pyte; a Unix pseudo-terminal)."""

from __future__ import annotations

import io
import os
import pty
import shutil
import sys
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 116, 48
COMMANDS = [
    "nightcourt run examples/judgments/archive.jsonl -q examples/judgments/questions.yaml -o {out}",
    "nightcourt show {out} crown-v-ferreday --limit 8",
]


def record(command: str) -> bytes:
    """Run a command in a pseudo-terminal of our size and return what it wrote there."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execvpe("sh", ["sh", "-c", f"stty cols {COLUMNS} rows {LINES}; {command}"], {**os.environ, "TERM": "xterm"})
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that the child closed its end
            piece = b""
        if not piece:
            break
        written += piece
    os.waitpid(child, 0)
    return written


def main() -> None:
    out = Path(tempfile.mkdtemp()) / "results"
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    for command in COMMANDS:
        stream.feed(f"$ {command.format(out='results')}\r\n".encode())
        stream.feed(record(command.format(out=out)).replace(str(out).encode(), b"results"))
    picture = Console(record=True, width=COLUMNS, file=io.StringIO())
    for row in range(LINES):
        line = Text()
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            colour = "" if cell.fg == "default" else cell.fg.replace("brown", "yellow")
            colour = f"#{colour}" if len(colour) == 6 and all(c in "0123456789abcdef" for c in colour) else colour
            line.append(cell.data, style=" ".join(filter(None, ["bold" if cell.bold else "", colour])))
        picture.print(line)
    picture.save_svg(str(ROOT / "docs" / "run.svg"), title="nightcourt")
    shutil.rmtree(out.parent)


if __name__ == "__main__":
    sys.exit(main())
