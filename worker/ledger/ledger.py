"""The ledger as Python sees it: one method for each command of ledger.lua."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson
from celery import Celery
from redis import Redis

from worker.contract import ErrorKind, Job, ModelIdentity, QuestionSet, Result, Source, UsageError, wire
from worker.contract.job import Outcome
from worker.ledger.queue import SCORE_TASK

PROTOCOL = "1"
_LUA = files("worker.ledger").joinpath("ledger.lua").read_text(encoding="utf-8")


@dataclass(frozen=True)
class LedgerSettings:
    """How a run holds its jobs. Times in seconds."""

    lease: float = 10.0
    max_attempts: int = 3
    window_jobs: int = 1000
    window_bytes: int = 256 * 1024 * 1024
    message_grace: float = 5.0  # a popped message should have become a claim by then

    @property
    def renew_every(self) -> float:
        return self.lease * 0.3


@dataclass(frozen=True)
class Claim:
    """A worker's hold on a job: the token fences off whoever held it before."""

    key: str
    token: int
    attempt: int
    payload: bytes


class ModelRefused(Exception):
    """This worker's model is not the one whose answers the run takes."""


class Ledger:
    """One run's jobs. Every method is one atomic step in Redis and may be called by any process."""

    def __init__(self, redis: Redis, run_id: str, app: Celery, settings: LedgerSettings | None = None) -> None:
        if not run_id.isalnum():
            raise ValueError(f"a run id has letters and digits only, not {run_id!r}")
        self.redis = redis
        self.run_id = run_id
        self.app = app
        self.settings = settings or LedgerSettings()
        self.prefix = f"nightcourt:{{{run_id}}}:"
        self._script = redis.register_script(_LUA)
        self._last_entry = "0-0"

    def _call(self, command: str, payloads: Iterable[bytes | str] = (), **arguments: Any) -> Any:
        queue = self.app.conf.task_default_queue
        return self._script(keys=[self.prefix, queue], args=[command, orjson.dumps(arguments), *payloads])

    def open(self, questions: QuestionSet | None, identity: str | None = None) -> None:
        """Create the run, or find it as it was. `identity` is the digest of the only model whose answers it takes.

        Raises UsageError when the ledger was written by another protocol version.
        """
        settings = self.settings
        reply = self._call(
            "open",
            [wire.encode(questions.as_map() if questions else None)],
            protocol=PROTOCOL,
            lease_ms=int(settings.lease * 1000),
            max_attempts=settings.max_attempts,
            window_jobs=settings.window_jobs,
            window_bytes=settings.window_bytes,
            **({"identity": identity} if identity else {}),
        )
        if reply[0] == b"protocol":
            raise UsageError(
                f"this run's ledger has protocol {reply[1].decode()}, and this Nightcourt speaks {PROTOCOL}: "
                "finish the run with the version that began it, or begin again in a new folder"
            )

    @classmethod
    def attach(cls, redis: Redis, run_id: str, app: Celery) -> tuple[Ledger, QuestionSet | None] | None:
        """A run that a producer has opened, with its question set (None when every document brings its own).

        Returns None for a run that this Redis does not know, or that another protocol version wrote.
        """
        ledger = cls(redis, run_id, app)
        fields: Any = redis.hmget(ledger.prefix + "run", ["protocol", "lease_ms", "questions"])
        protocol, lease_ms, questions = fields
        if protocol is None or protocol.decode() != PROTOCOL:
            return None
        ledger.settings = LedgerSettings(lease=int(lease_ms) / 1000)
        plain = orjson.loads(questions)
        return ledger, QuestionSet.model_validate(plain) if plain else None

    def admit(self, jobs: Sequence[tuple[Job, Source]]) -> int:
        """Take in jobs, in order, until the window is full, and publish their messages.

        Returns how many of them are settled (new, or known already); the caller offers the rest again later.
        """
        if not jobs:
            return 0
        payloads: list[bytes | str] = []
        for job, source in jobs:
            payloads += [job.document_id, wire.encode(job), wire.encode(source)]
        settled, added = self._call("admit", payloads, keys=[job.key for job, _ in jobs])
        self.publish(added)
        return int(settled)

    def publish(self, keys: Iterable[bytes]) -> None:
        """Send a message for each job. A message may be lost or doubled: `reap` and `claim` make up for both."""
        names = [f"{self.run_id}/{key.decode()}" for key in keys]
        if not names:
            return
        with self.app.producer_pool.acquire(block=True) as producer:
            for name in names:
                self.app.send_task(SCORE_TASK, args=[name], producer=producer, ignore_result=True)

    def claim(self, key: str, worker: str, identity: ModelIdentity) -> Claim | None:
        """Take a lease on a job; None when there is nothing to do for it (done, held by another, unknown).

        Raises ModelRefused when the run takes another model's answers.
        """
        reply = self._call("claim", [wire.encode(identity)], key=key, worker=worker, identity=identity.digest())
        if reply[0] == b"claimed":
            return Claim(key, int(reply[1]), int(reply[2]), reply[3])
        if reply[0] == b"refused":
            raise ModelRefused(f"run {self.run_id} takes answers of model {reply[1].decode()}, not {identity.digest()}")
        return None

    def renew(self, claim: Claim) -> bool:
        """Extend a lease; False when it is lost."""
        return bool(self._call("renew", key=claim.key, token=claim.token))

    def commit(self, claim: Claim, outcome: Outcome) -> bool:
        """Store the outcome; False when another attempt has overtaken this one, and nothing was stored."""
        reply = self._call("commit", [wire.encode(outcome)], key=claim.key, token=claim.token, status=outcome.status)
        return bool(reply == b"committed")

    def fail(self, claim: Claim, kind: ErrorKind, reason: str) -> str:
        """End an attempt without an outcome. Returns waiting (tried again), quarantined or late."""
        reply = self._call("fail", key=claim.key, token=claim.token, kind=kind.value, reason=reason).decode()
        if reply == "waiting":
            self.publish([claim.key.encode()])
        return str(reply)

    def release(self, claim: Claim) -> None:
        """Hand a job back untouched; the attempt is not counted."""
        if self._call("release", key=claim.key, token=claim.token) == b"waiting":
            self.publish([claim.key.encode()])

    def abandon(self, worker: str, reason: str) -> int:
        """End the attempts of a worker known to be dead, at once. Returns how many jobs went back to waiting."""
        keys = self._call("abandon", worker=worker, reason=reason)
        self.publish(keys)
        return len(keys)

    def reap(self) -> int:
        """Take back expired leases and publish lost messages again; idempotent. Returns how many were published."""
        keys = self._call("reap", grace_ms=int(self.settings.message_grace * 1000))
        self.publish(keys)
        return len(keys)

    def collect(self, limit: int = 256, wait: float = 0.0) -> list[tuple[str, Result]]:
        """Results after those collected before by this object, with the stream entry that `forget` takes.

        A new object begins with everything that was never forgotten. `wait`: seconds to wait for the first one.
        """
        block = max(1, int(wait * 1000)) if wait > 0 else None
        reply: Any = self.redis.xread({self.prefix + "results": self._last_entry}, count=limit, block=block)
        found = []
        for _, entries in reply or []:
            for entry, fields in entries:
                self._last_entry = entry.decode()
                found.append((self._last_entry, _result(fields)))
        return found

    def forget(self, collected: Sequence[tuple[str, str]]) -> None:
        """Drop results, given as (stream entry, job key), once they are durable elsewhere."""
        if collected:
            self._call("forget", entries=[entry for entry, _ in collected], keys=[key for _, key in collected])

    def figures(self) -> dict[str, Any]:
        """The run's counters and its model, as the ledger has them now."""
        fields: Any = self.redis.hgetall(self.prefix + "run")
        fields = {name.decode(): value.decode() for name, value in fields.items() if name != b"questions"}
        return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in fields.items()}

    def identity(self) -> ModelIdentity | None:
        """The model whose answers the run takes, once a worker has claimed the first job."""
        stored = self.redis.hget(self.prefix + "run", "identity_json")
        return wire.decode(ModelIdentity, stored) if stored else None

    def refused_identity(self) -> ModelIdentity | None:
        """A model that asked for this run's jobs and was not the run's own."""
        stored = self.redis.hget(self.prefix + "run", "refused")
        return wire.decode(ModelIdentity, stored) if stored else None

    def purge(self) -> None:
        """Remove every key of the run."""
        keys = list(self.redis.scan_iter(match=_literal(self.prefix) + "*", count=1000))
        for start in range(0, len(keys), 1000):
            self.redis.unlink(*keys[start : start + 1000])


def _literal(prefix: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix)


def _result(fields: dict[bytes, bytes]) -> Result:
    return Result.model_validate(
        {
            "job": fields[b"job"].decode(),
            "document_id": fields[b"document"].decode(),
            "source": orjson.loads(fields[b"source"]),
            "attempt": int(fields[b"attempt"]),
            "finished_at": int(fields[b"finished_ms"]) / 1000,
            "worker": fields[b"worker"].decode(),
            "outcome": orjson.loads(fields[b"outcome"]),
        }
    )
