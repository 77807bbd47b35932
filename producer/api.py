"""Scoring from Python, for notebooks: an iterator of results over an iterable of documents."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from producer.questions import load_questions, parse_questions
from producer.session import ModelChoice, Session, temporary_folder
from worker.contract import Job, QuestionSet, Result, Source, UsageError

_BATCH = 64


def score(
    documents: Iterable[str | Mapping[str, Any]],
    questions: QuestionSet | Mapping[str, Any] | str | Path,
    *,
    model: str = "smollm2",
    device: str = "cpu",
    readout: str | None = None,
    dtype: str | None = None,
    redis: str | None = None,
    workers: int | None = None,
) -> Iterator[Result]:
    """Score documents as they come; results come in the order in which they are finished.

    documents: texts, or mappings with `id`, and `text` or `state`; other keys come back in `result.source.columns`.
    A text without an id is named by its place, counted from 0. questions: a question set, a System One map, or the
    path of a file. The other arguments are those of `nightcourt run`; without `redis` (or NIGHTCOURT_REDIS_URL) an
    embedded server and one worker are started, and ended with the iterator.

    Yields `worker.contract.Result`: `result.outcome.answers["id"].probabilities` for an answered document, and
    `result.outcome.reason` for a failed one. Raises UsageError, also for an id that comes twice, and ModelError.

        for result in score(["The appeal is dismissed."], {"dismissed": "Is the appeal dismissed?"}):
            print(result.document_id, result.outcome)
    """
    asked = _question_set(questions)
    choice = ModelChoice(model=model, device=device, readout=readout, dtype=dtype)
    with (
        temporary_folder() as folder,
        Session(secrets.token_hex(8), choice, asked, folder, redis_url=redis, workers=workers) as session,
    ):
        try:
            yield from _results(session, _jobs(documents))
        finally:
            session.ledger.purge()


def _results(session: Session, jobs: Iterator[tuple[Job, Source]]) -> Iterator[Result]:
    ledger = session.ledger
    offered: list[tuple[Job, Source]] = []
    admitted = collected = 0
    while True:
        offered += islice(jobs, _BATCH - len(offered))
        if not offered and collected == admitted:
            return
        settled = ledger.admit(offered)
        admitted += settled
        offered = offered[settled:]
        results = ledger.collect(wait=0.1)
        ledger.forget([(entry, result.job) for entry, result in results])
        for _, result in results:
            collected += 1
            yield result
        for _ in session.watch():
            pass  # a worker that died is replaced; its documents are tried again


def _question_set(questions: QuestionSet | Mapping[str, Any] | str | Path) -> QuestionSet:
    if isinstance(questions, QuestionSet):
        return questions
    if isinstance(questions, (str, Path)):
        return load_questions(Path(questions))
    return parse_questions(dict(questions), "questions")


def _jobs(documents: Iterable[str | Mapping[str, Any]]) -> Iterator[tuple[Job, Source]]:
    seen: set[str] = set()
    for position, document in enumerate(documents):
        columns = {} if isinstance(document, str) else dict(document)
        document_id = str(columns.pop("id", position))
        state = document if isinstance(document, str) else columns.pop("text", columns.pop("state", None))
        if not isinstance(state, (str, dict, list)):
            raise UsageError(f"document {document_id} has no text: give a string, or a mapping with text or state")
        if document_id in seen:
            raise UsageError(f"two documents have the id {document_id}")
        seen.add(document_id)
        yield Job(document_id=document_id, state=state), Source(position=position, columns=columns)
