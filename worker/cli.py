"""The `worker` command: take jobs of one model from Redis and score them."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated

import typer

from worker import settings
from worker.contract import UsageError


def worker(
    model: Annotated[str, typer.Option(help="smollm2, a folder, or a hub id as ORG/NAME[@REVISION].")] = "smollm2",
    redis: Annotated[
        str | None, typer.Option(envvar=settings.REDIS_URL, help="Address of Redis.", show_envvar=True)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:N for the card with index N.")] = "cpu",
    readout: Annotated[
        str | None, typer.Option(help="How hidden states become probabilities; default: the best.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default by device.")] = None,
    name: Annotated[str | None, typer.Option(help="How the ledger names this worker; default HOST-PID.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    end_with_parent: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take jobs of one model from Redis and score them, until SIGTERM.

    A run with the same --model and the same --redis finds this worker by itself:

        nightcourt worker --model smollm2 --redis redis://localhost:6379/0
    """
    if not redis:
        raise UsageError("a worker needs the address of Redis: --redis redis://HOST:PORT/0, or NIGHTCOURT_REDIS_URL")
    if threads:  # before torch is imported, which reads it once
        os.environ["OMP_NUM_THREADS"] = str(threads)
    from worker.process import serve

    def load():  # type: ignore[no-untyped-def]  # torch's types are not worth importing torch for
        from worker.scorer import Scorer

        return Scorer.load(model, device=device, readout=readout, dtype=dtype)

    raise typer.Exit(
        serve(
            load,
            redis_url=redis,
            model=model,
            name=name or f"{socket.gethostname()}-{os.getpid()}",
            end_with_parent=end_with_parent,
        )
    )


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
    app.command()(worker)
    try:
        app()
    except UsageError as error:
        print(f"nightcourt: {error}", file=sys.stderr)
        sys.exit(2)
