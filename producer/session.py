"""A run's hold on the machinery: Redis, the ledger and its own workers, watched and ended together."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from redis import Redis

from producer.embedded import EmbeddedRedis, EmbeddedWorker
from worker import settings
from worker.contract import ModelError, ModelIdentity, QuestionSet, UsageError
from worker.ledger import Ledger, connect, create_app, queue_name
from worker.process import EXIT_MODEL

_REAP_EVERY = 1.0  # seconds
_RESTARTS = 20  # of one worker in one run: past this the trouble is not the documents'


@dataclass(frozen=True)
class ModelChoice:
    """Which model answers, and how: the settings that can change answers."""

    model: str = "smollm2"
    device: str = "cpu"
    readout: str | None = None
    dtype: str | None = None

    def worker_arguments(self) -> list[str]:
        given = {"model": self.model, "device": self.device, "readout": self.readout, "dtype": self.dtype}
        return [part for name, value in given.items() if value for part in (f"--{name}", value)]


class Session:
    """Use as a context manager. With no Redis URL it starts an embedded server and one worker, and ends both.

    `folder` holds the server's append-only file and the workers' logs; whoever made it decides what becomes of it.
    """

    def __init__(
        self,
        run_id: str,
        choice: ModelChoice,
        questions: QuestionSet | None,
        folder: Path,
        *,
        redis_url: str | None = None,
        workers: int | None = None,
        identity: str | None = None,
    ) -> None:
        self._run_id, self._choice, self._questions, self._identity = run_id, choice, questions, identity
        self._folder = folder
        self._url = settings.redis_url(redis_url)
        self.worker_count = workers if workers is not None else int(self._url is None)
        self._exits = contextlib.ExitStack()
        self._workers: list[EmbeddedWorker] = []
        self._started = 0
        self._reaped_at = 0.0

    def __enter__(self) -> Session:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._url is None:
                self._server: EmbeddedRedis | None = EmbeddedRedis(self._folder / "redis")
                self._exits.callback(self._server.stop)
                self._url = self._server.url
            else:
                self._server = None
            redis: Redis = connect(self._url)
            self._exits.callback(redis.close)
            self.ledger = Ledger(redis, self._run_id, create_app(self._url, queue_name(self._choice.model)))
            self.ledger.open(self._questions, self._identity)
            for _ in range(self.worker_count):
                self._workers.append(self._start_worker())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        for worker in self._workers:  # all are asked before any is waited for
            worker.ask_to_stop()
        for worker in self._workers:
            worker.stop()
        self._exits.close()

    def _start_worker(self) -> EmbeddedWorker:
        assert self._url is not None
        name = f"{self._run_id[:8]}w{self._started}"
        self._started += 1
        return EmbeddedWorker(
            name,
            self._choice.worker_arguments(),
            self._folder / "worker.log",
            {settings.REDIS_URL: self._url},
        )

    def watch(self) -> Iterator[str]:
        """Look after the workers and the ledger; call it often. Yields what a person should be told.

        Raises ModelError when the model cannot be used, UsageError when the machinery itself is broken.
        """
        if self._server is not None and not self._server.alive:
            raise UsageError("the embedded Redis died; start the same run again to continue")
        for place, worker in enumerate(self._workers):
            status = worker.exit_status
            if status is None:
                continue
            if status == EXIT_MODEL:
                raise ModelError(worker.last_words().removeprefix("nightcourt: "))
            if self._started >= _RESTARTS * max(1, self.worker_count):
                raise UsageError(f"workers died {self._started} times; the last one's log is {worker.log}")
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            back = self.ledger.abandon(worker.name, f"worker {worker.name} {how}")
            self._workers[place] = self._start_worker()
            yield f"worker {worker.name} {how}; {back} document(s) went back to the queue, and a new worker starts"
        if time.monotonic() - self._reaped_at >= _REAP_EVERY:
            self._reaped_at = time.monotonic()
            self.ledger.reap()
            refused = self.ledger.refused_identity()
            if refused is not None:
                raise UsageError(_another_model(self.ledger.identity(), refused))


def _another_model(expected: ModelIdentity | None, found: ModelIdentity) -> str:
    if expected is None:
        return f"this run was answered by another model than {found.name} ({found.digest()}); use another -o"
    was, now = expected.model_dump(exclude={"name"}), found.model_dump(exclude={"name"})
    differences = [f"{field} was {was[field]} and is now {now[field]}" for field in was if was[field] != now[field]]
    return f"this run was answered by another model: {'; '.join(differences)}. Use another -o, or the old model"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for a session that nobody will continue."""
    folder = Path(tempfile.mkdtemp(prefix="nightcourt-run-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
