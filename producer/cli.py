"""The `nightcourt` command: run, show and export here; the worker's commands from the worker package."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from producer.export import export_systemone, export_wide
from producer.progress import duration
from producer.questions import load_questions, warnings
from producer.run import RunReport, RunSettings, run
from producer.session import ModelChoice
from producer.show import show
from worker import __version__, settings
from worker.cli import worker
from worker.contract import ModelError, UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Score a whole archive: every question over every document, with a probability for every option.",
    epilog="First steps: nightcourt run ARCHIVE -q QUESTIONS -o OUT, then nightcourt show OUT.",
)
app.command("worker")(worker)


class Format(StrEnum):
    parquet = "parquet"
    jsonl = "jsonl"
    csv = "csv"


class ExportForm(StrEnum):
    wide = "wide"
    systemone = "systemone"


@app.command("run")
def run_command(
    archive: Annotated[Path, typer.Argument(help="A .jsonl file (id, text or state, ...) or a folder of .txt files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The run folder; an existing run is continued.")],
    questions: Annotated[
        Path | None, typer.Option("-q", "--questions", help="Question set, YAML or JSON. Lines may bring their own.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A folder, a hub id as ORG/NAME[@REVISION], or smollm2: 135M parameters from a package, which shows "
            "the machinery and is too small to trust."
        ),
    ] = "smollm2",
    device: Annotated[str, typer.Option(help="cpu, or cuda:N for the card with index N.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; default float32 on cpu, bfloat16 on cuda.")
    ] = None,
    readout: Annotated[
        str | None, typer.Option(help="How hidden states become probabilities; default: the family's best.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="How result parts are written.")] = Format.parquet,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N documents.")] = None,
    redis: Annotated[
        str | None,
        typer.Option(envvar=settings.REDIS_URL, help="Address of a shared Redis; default: an embedded server."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Workers to start here; default 1 with the embedded server, 0 with --redis."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary; errors only.")] = False,
) -> None:
    """Ask every question of a set about every document of an archive.

    The run folder holds manifest.json, results/part-* (one row per document and question) and errors.jsonl. The same
    command again continues where it stopped. Exit status: 0 all answered, 1 some failed, 2 bad input, 130 interrupted.

        nightcourt run judgments.jsonl -q questions.yaml -o results
    """
    console = Console()
    asked = load_questions(questions) if questions else None
    if asked and not quiet:
        for warning in warnings(asked):
            console.print(f"note: {warning}", style="yellow", highlight=False)
    chosen = RunSettings(
        archive=archive,
        out=out,
        questions=asked,
        choice=ModelChoice(model=model, device=device, readout=readout, dtype=dtype),
        format=format.value,
        limit=limit,
        redis_url=redis,
        workers=workers,
        quiet=quiet,
    )
    try:
        report = run(chosen, console)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command continues this run", highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not quiet:
        _summary(report, model, console)
    unanswered = report.counts["failed"] + report.counts["quarantined"]
    raise typer.Exit(EXIT_FAILED if unanswered else 0)


@app.command("show")
def show_command(
    out: Annotated[Path, typer.Argument(help="A run folder.")],
    document: Annotated[str | None, typer.Argument(help="The id of one document; default: a summary of all.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many rows of a table.")] = 50,
) -> None:
    """Print a run's results as tables: how the answers are spread, or one document's answers."""
    show(out, document, Console(), limit)


@app.command("export")
def export_command(
    out: Annotated[Path, typer.Argument(help="A run folder.")],
    wide: Annotated[
        Path | None, typer.Option("--wide", help="One row a document, into a .csv, .parquet or .jsonl file.")
    ] = None,
    form: Annotated[
        ExportForm | None, typer.Option("--format", help="systemone: answers in the System One form, JSON Lines.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Where --format writes; default OUT/FORMAT.jsonl.")
    ] = None,
) -> None:
    """Write a run's results in another form.

    nightcourt export results --wide table.csv
    nightcourt export results --format systemone --file answers.jsonl
    """
    if (wide is None) == (form is not ExportForm.systemone):
        raise UsageError("say what to write: --wide FILE.csv, or --format systemone")
    if wide is not None:
        export_wide(out, wide)
        target = wide
    else:
        target = file or out / "systemone.jsonl"
        export_systemone(out, target)
    Console().print(f"wrote {target}", highlight=False)


def _summary(report: RunReport, model: str, console: Console) -> None:
    counts, tally = report.counts, report.tally
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    unanswered = counts["failed"] + counts["quarantined"]
    table.add_row("documents", f"{counts['documents']}: {counts['answered']} answered, {unanswered} failed")
    if report.identity:
        note = " (shows the machinery; too small to trust)" if model == "smollm2" else ""
        table.add_row("model", f"{model}{note}, {report.identity.family}, {report.identity.readout}")
    if tally.input_tokens:
        saved = 1 - tally.computed_tokens / tally.input_tokens
        table.add_row(
            "tokens",
            f"{tally.computed_tokens:,} computed for {tally.input_tokens:,} ({saved:.0%} saved by sharing documents)",
        )
    table.add_row("time", f"{duration(report.seconds)}, {tally.per_minute:.1f} documents/min")
    table.add_row("results", f"{report.out / 'results'}")
    if unanswered:
        table.add_row("errors", f"{report.out / 'errors.jsonl'}")
    table.add_row("next", f"nightcourt show {report.out}   ·   nightcourt export {report.out} --wide table.csv")
    console.print(table, highlight=False)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        print(f"nightcourt {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every error of the user's input is one line on standard error."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(standalone_mode=True)
    except (UsageError, ModelError) as error:
        Console(stderr=True).print(f"[red]error:[/] {_escaped(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(EXIT_USAGE)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


if __name__ == "__main__":
    main()
