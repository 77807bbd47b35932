"""A Redis-speaking server of the tests' own, started on a unix socket and ended with them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from producer.embedded import EmbeddedRedis

# A shell that starts a command in the background lets it ignore Ctrl-C, and its children inherit that. The runs that
# tests interrupt must start as a person's would, whatever started the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    client: Redis = Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]
