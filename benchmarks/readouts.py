"""How well each readout of the zeroshot family finds the known answers: `python -m benchmarks.readouts`."""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path
from typing import Annotated, Any

import orjson
import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from producer.archive import Entry, open_archive
from producer.questions import load_questions
from worker.contract import Answered, Job, QuestionSet
from worker.families.zeroshot import READOUTS
from worker.scorer import Scorer

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "judgments"


def right_key(question_type: str, answer: Any) -> str:
    """The key of the right option, from how answers.jsonl writes it."""
    return ("yes" if answer else "no") if question_type == "noul" else str(answer)


def measure(scorer: Scorer, entries: list[Entry], questions: QuestionSet, answers: dict[str, Any]) -> dict[str, float]:
    """Accuracy and mean log-loss (nats) over all documents and questions, and seconds a document."""
    right, loss, total = 0, 0.0, 0
    by_type: dict[str, list[int]] = {}
    started = time.perf_counter()
    for entry in entries:
        answered: Answered = scorer.score(Job(document_id=entry.document_id, state=entry.state), questions)
        for question_id, question in questions.items():
            answer = answered.answers[question_id]
            key = right_key(question.type, answers[entry.document_id][question_id])
            hit = answer.answer == key
            right, total = right + hit, total + 1
            by_type.setdefault(question.type, []).append(hit)
            loss -= math.log(max(answer.probabilities[key], 1e-12))
    found = {"accuracy": right / total, "log_loss": loss / total}
    found |= {f"accuracy_{kind}": sum(hits) / len(hits) for kind, hits in by_type.items()}
    return found | {"seconds_per_document": (time.perf_counter() - started) / len(entries)}


def baselines(entries: list[Entry], questions: QuestionSet, answers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What needs no model: equal probabilities, and always the most frequent right answer of this archive."""
    chance = sum(1 / len(question.options) for question in questions.values()) / len(questions)
    even = sum(math.log(len(question.options)) for question in questions.values()) / len(questions)
    frequent = 0
    for question_id, question in questions.items():
        keys = [right_key(question.type, answers[entry.document_id][question_id]) for entry in entries]
        frequent += max(keys.count(key) for key in keys)
    return {
        "chance": {"accuracy": chance, "log_loss": even},
        "most frequent answer": {"accuracy": frequent / (len(entries) * len(questions))},
    }


def main(
    model: Annotated[str, typer.Option(help="Any model that `nightcourt run --model` takes.")] = "smollm2",
    archive: Annotated[Path, typer.Option(help="Folder with archive.jsonl, questions.yaml, answers.jsonl.")] = EXAMPLES,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
) -> None:
    """Compare every readout on documents whose answers are known."""
    questions = load_questions(archive / "questions.yaml")
    entries = [place for place in open_archive(archive / "archive.jsonl").read() if isinstance(place, Entry)]
    lines = (archive / "answers.jsonl").read_bytes().splitlines()
    answers = {line["id"]: line["answers"] for line in map(orjson.loads, lines)}
    figures: dict[str, Any] = dict(baselines(entries, questions, answers))
    for readout in READOUTS:
        figures[readout] = measure(Scorer.load(model, device=device, readout=readout), entries, questions, answers)
    table = Table(
        "readout", "accuracy", "choice", "score", "noul", "log-loss", "s/document", title=f"{model}, {archive}"
    )
    for name, row in figures.items():
        values = [row.get(f"accuracy{kind}") for kind in ("", "_choice", "_score", "_noul")]
        values += [row.get("log_loss"), row.get("seconds_per_document")]
        table.add_row(name, *("" if value is None else f"{value:.3f}" for value in values))
    console = Console()
    console.print(table)
    machine = {
        "device": device,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(orjson.dumps({"model": model, "documents": len(entries), "readouts": figures, **machine}).decode())


if __name__ == "__main__":
    typer.run(main)
