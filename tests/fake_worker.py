"""A worker process with a cheap, deterministic stand-in for a model: `python tests/fake_worker.py URL MODEL NAME`.

The document's text says what happens to it: `die` kills the process, `explode` raises, `long` is refused as too long,
`slow` takes half a second; anything else is answered by a hash of the text and the question.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

from worker.contract import (
    Answered,
    DocumentError,
    ErrorKind,
    Job,
    ModelIdentity,
    QuestionSet,
    Usage,
    answer_from_probabilities,
)
from worker.process import serve


def probabilities(text: str, question_id: str, options: int) -> list[float]:
    digest = hashlib.sha256(f"{text}/{question_id}".encode()).digest()
    weights = [1 + byte for byte, _ in zip(digest * 8, range(options), strict=False)]
    return [weight / sum(weights) for weight in weights]


class FakeScorer:
    def __init__(self, checkpoint: str = "fake") -> None:
        self.identity = ModelIdentity(
            name="fake",
            family="fake",
            readout="hash",
            checkpoint_sha256=checkpoint,
            dtype="float32",
            max_length=1000,
            engine_version="test",
        )

    def score(self, job: Job, questions: QuestionSet) -> Answered:
        text = str(job.state)
        if "die" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "explode" in text:
            raise RuntimeError("exploded")
        if "long" in text:
            raise DocumentError(ErrorKind.DOCUMENT_TOO_LONG, "2,000 tokens; the limit is 1,000")
        if "slow" in text:
            time.sleep(0.5)
        answers = {
            question_id: answer_from_probabilities(question, probabilities(text, question_id, len(question.options)))
            for question_id, question in questions.items()
        }
        return Answered(answers=answers, usage=Usage(input_tokens=100, computed_tokens=10))


if __name__ == "__main__":
    url, model, name, *rest = sys.argv[1:]
    sys.exit(
        serve(
            lambda: FakeScorer(*rest),
            redis_url=url,
            model=model,
            name=name,
            end_with_parent=True,
        )
    )
