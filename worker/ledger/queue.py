"""Celery on Redis, set up so that a message is only a hint: JSON, ids only, acknowledged early, no results kept."""

from __future__ import annotations

import hashlib
import re

from celery import Celery
from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from worker.contract import UsageError

SCORE_TASK = "nightcourt.score"


def connect(url: str, *, timeout: float = 10.0) -> Redis:
    """A client with time limits and retries, checked with one PING.

    Raises UsageError when nothing answers at the URL. The password in a URL is never part of a message.
    """
    try:
        client: Redis = Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), 3),
            retry_on_error=[RedisConnectionError],
        )
        client.ping()
    except (RedisError, OSError, ValueError) as error:
        raise UsageError(
            f"no Redis answers at {without_password(url)} ({type(error).__name__}: {error}); check the address, "
            "or leave out --redis and NIGHTCOURT_REDIS_URL to use the embedded server"
        ) from error
    return client


def without_password(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//***@", url)


def queue_name(model: str) -> str:
    """One queue a model, so that a worker is only ever handed jobs that it can do."""
    readable = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[-40:]
    return f"nightcourt.{readable}.{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def create_app(url: str, queue: str) -> Celery:
    """The Celery app of one queue.

    Early acknowledgement, because the ledger and not Celery finds lost work again; no result backend, because results
    travel through the ledger's stream; one message at a time, because a busy solo worker would sit on a second one.
    """
    app = Celery("nightcourt", broker=re.sub(r"^unix:", "redis+socket:", url))
    app.conf.update(
        task_default_queue=queue,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"socket_timeout": 30, "socket_connect_timeout": 10, "socket_keepalive": True},
    )
    return app
