"""The environment variables that Nightcourt reads, each with its meaning; the command line comes before them."""

from __future__ import annotations

import os

REDIS_URL = "NIGHTCOURT_REDIS_URL"  # redis://, rediss:// or unix://, with user and password where there are any
CACHE = "NIGHTCOURT_CACHE"  # where converted models are kept; default ~/.cache/nightcourt


def redis_url(given: str | None) -> str | None:
    """The Redis to use: the command line's, else the environment's, else None (the embedded server)."""
    return given or os.environ.get(REDIS_URL) or None
