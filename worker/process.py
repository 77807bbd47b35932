"""A worker process: load the model, then take jobs in the main thread until told to stop."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable

from celery.platforms import SecurityWarning

from worker.contract import ModelError
from worker.ledger import connect, create_app, queue_name
from worker.ledger.task import Scoring, register

EXIT_MODEL = 3  # the model cannot be used: starting the same worker again would not help

log = logging.getLogger(__name__)


def serve(load: Callable[[], Scoring], *, redis_url: str, model: str, name: str, end_with_parent: bool) -> int:
    """Run a worker until SIGTERM; returns its exit status.

    The task runs in the main thread (pool solo): CUDA work elsewhere was seen many times slower, and a fork of a
    process that has touched CUDA is broken. With `end_with_parent` the process ends when its standard input does,
    however its parent died.
    """
    # Celery warns root users of pickle; nothing but JSON with ids is accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if end_with_parent:
        threading.Thread(target=_end_with_standard_input, name="parent", daemon=True).start()
    redis = connect(redis_url)
    try:
        scorer = load()
    except ModelError as error:
        print(f"nightcourt: {error}", file=sys.stderr, flush=True)
        return EXIT_MODEL
    app = create_app(redis_url, queue_name(model))
    register(app, redis, scorer, name)
    log.info("worker %s is ready: %s", name, scorer.identity.model_dump_json())
    worker = app.Worker(
        pool="solo",
        hostname=f"{name}@nightcourt",
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        queues=[queue_name(model)],
    )
    worker.start()
    return int(worker.exitcode or 0)


def _end_with_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # at once, work in hand included: nobody is left to collect it, and its lease will run out
