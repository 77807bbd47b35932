"""Results as tables in the terminal: a run's summary, or one document's answers."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from producer.folder import iter_errors, iter_rows, read_manifest
from worker.contract import UsageError

SHOWN_ERRORS = 10
SHOWN_OPTIONS = 12
DEMO_NOTE = "shows the machinery; too small to trust"


@dataclass
class _Distribution:
    """How one question was answered over all documents."""

    type: str
    documents: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    probability: Counter[str] = field(default_factory=Counter)  # summed; ordered as the options are
    legend: list[str] | None = None
    score: float = 0.0

    def add(self, row: dict[str, Any]) -> None:
        self.documents += 1
        self.answers[row["answer"]] += 1
        self.legend = row["legend"]
        self.score += row["score"] or 0.0
        for option, p in row["probabilities"].items():
            self.probability[option] += p


def show(out: Path, document: str | None, console: Console, limit: int | None = None) -> None:
    """Print a run's summary and at most `limit` questions, or the answers (at most `limit`) of one document.

    Raises UsageError when `out` is not a run folder, or has no such document (with ids that are close).
    """
    manifest = read_manifest(out)
    if document is None:
        _show_run(out, manifest, console, limit)
    else:
        _show_document(out, document, console, limit)


def _show_run(out: Path, manifest: dict[str, Any], console: Console, limit: int | None) -> None:
    console.print(_summary(out, manifest))
    distributions: dict[str, _Distribution] = {}
    for row in iter_rows(out):
        distributions.setdefault(row["question_id"], _Distribution(row["type"])).add(row)
    for question_id, distribution in islice(distributions.items(), limit):
        console.print()
        console.print(_distribution_table(question_id, distribution))
    if limit is not None and len(distributions) > limit:
        console.print(f"\n{len(distributions) - limit} more questions; a larger --limit shows them")
    _show_errors(out, console)


def _summary(out: Path, manifest: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    counts, identity, timings = (manifest.get(name) or {} for name in ("counts", "identity", "timings"))
    table.add_row("run", escape(str(out)))
    table.add_row("archive", escape(str(manifest.get("archive", "unknown"))))
    table.add_row("documents", ", ".join(f"{count:,} {name}" for name, count in counts.items() if name != "documents"))
    if identity:
        table.add_row("model", escape(_model(identity)))
    for name, value in timings.items():
        shown = f"{value:,.1f}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), escape(shown))
    return table


def _model(identity: dict[str, Any]) -> str:
    described = ", ".join(str(identity[name]) for name in ("family", "readout", "dtype") if identity.get(name))
    name = str(identity.get("name", "unknown"))
    model = f"{name} ({described})" if described else name
    return f"{model}: {DEMO_NOTE}" if name == "smollm2" else model


def _distribution_table(question_id: str, found: _Distribution) -> Table:
    title = f"{question_id} ({found.type})"
    if found.type == "score":
        title += f", mean score {found.score / found.documents:.2f}"
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("answer")
    table.add_column("documents", justify="right")
    table.add_column("share", justify="right")
    table.add_column("mean probability", justify="right")
    options = list(found.probability)
    if len(options) > SHOWN_OPTIONS:
        options = [option for option, _ in found.answers.most_common(SHOWN_OPTIONS)]
    for option in options:
        count = found.answers[option]
        mean = found.probability[option] / found.documents
        label = escape(_label(option, found.legend))
        table.add_row(label, f"{count:,}", f"{count / found.documents:.0%}", f"{mean:.3f}")
    if len(found.probability) > len(options):
        table.caption = f"{len(found.probability) - len(options)} options answered less often are not shown"
    return table


def _show_errors(out: Path, console: Console) -> None:
    errors, total = [], 0
    for error in iter_errors(out):
        total += 1
        if total <= SHOWN_ERRORS:
            errors.append(error)
    if not total:
        return
    table = Table(title=f"{total:,} without answers", title_justify="left", title_style="bold")
    for heading in ("document", "status", "kind", "reason"):
        table.add_column(heading, overflow="fold")
    for error in errors:
        table.add_row(*(escape(str(error[name])) for name in ("document", "status", "kind", "reason")))
    if total > len(errors):
        table.caption = f"the first {len(errors)}; all are in {escape(str(out / 'errors.jsonl'))}"
    console.print()
    console.print(table)


def _show_document(out: Path, document: str, console: Console, limit: int | None) -> None:
    rows, errors, known = [], [], dict[str, None]()
    for row in iter_rows(out):
        known[row["document_id"]] = None
        if row["document_id"] == document:
            rows.append(row)
    for error in iter_errors(out):
        known[error["document"]] = None
        if error["document"] == document:
            errors.append(error)
    if not rows and not errors:
        close = difflib.get_close_matches(document, known, n=3, cutoff=0.5)
        advice = f"close to it: {', '.join(close)}" if close else f"the run has {len(known):,} documents"
        raise UsageError(f"{out} has no document {document!r}; {advice}")
    if rows:
        table = Table(title=escape(document), title_justify="left", title_style="bold")
        table.add_column("question", overflow="fold")
        table.add_column("answer", overflow="fold")
        table.add_column("probability", justify="right")
        table.add_column("confidence", justify="right")
        table.add_column("other options", overflow="fold")
        for row in islice(rows, limit):
            table.add_row(*map(escape, _answer_cells(row)))
        if limit is not None and len(rows) > limit:
            table.caption = f"{len(rows) - limit} more questions; a larger --limit shows them"
        console.print(table)
    for error in errors:
        console.print(escape(f"{document}: {error['status']}, {error['kind']}: {error['reason']}"))


def _answer_cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    answer, probabilities = row["answer"], row["probabilities"]
    label = _label(answer, row["legend"])
    if row["score"] is not None:
        label += f" (score {row['score']:.2f})"
    others = sorted(((p, option) for option, p in probabilities.items() if option != answer), key=lambda pair: -pair[0])
    shown = ", ".join(f"{option} {p:.3f}" for p, option in others[:SHOWN_OPTIONS])
    if len(others) > SHOWN_OPTIONS:
        shown += f", {len(others) - SHOWN_OPTIONS} more"
    confidence = "" if row["confidence"] is None else f"{row['confidence']:.3f}"
    return row["question_id"], label, f"{probabilities[answer]:.3f}", confidence, shown


def _label(option: str, legend: list[str] | None) -> str:
    """An option as a reader knows it: a score's level with its description."""
    return f"{option}: {legend[int(option)]}" if legend else option
