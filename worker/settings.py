"""The environment variables that Nightcourt reads, each with its meaning; the command line comes before them."""

from __future__ import annotations

import os
from pathlib import Path

REDIS_URL = "NIGHTCOURT_REDIS_URL"  # redis://, rediss:// or unix://, with user and password where there are any
CACHE = "NIGHTCOURT_CACHE"  # where converted models are kept; default ~/.cache/nightcourt


def redis_url(given: str | None) -> str | None:
    """The Redis to use: the command line's, else the environment's, else None (the embedded server)."""
    return given or os.environ.get(REDIS_URL) or None


def cache_folder() -> Path:
    """Where converted models and digests are kept between runs."""
    return Path(os.environ.get(CACHE) or "~/.cache/nightcourt").expanduser()


def quiet_transformers() -> None:
    """No progress bars and no advice in a worker's log; errors stay."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # the GGUF reader's bar is tqdm's own
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
