"""Answers: probabilities for every option, and the decision, score and confidence that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from worker.contract.questions import Choice, Noul, Score, Text


class Answer(BaseModel):
    """One question's answer about one document.

    `probabilities` has every option in the question's order and sums to 1. `answer` is the key of the first most
    probable option. `score` (score questions) is the expectation over zero-based levels. `confidence` is the System
    One form's; a noul has none. `legend` names the levels of a score.
    """

    model_config = ConfigDict(frozen=True)

    type: Literal["choice", "score", "noul"]
    answer: str
    probabilities: dict[str, float]
    score: float | None = None
    confidence: float | None = None
    legend: list[Text] | None = None

    def system_one(self) -> dict[str, Any]:
        """The answer as a System One server would send it."""
        if self.type == "noul":
            return {"type": "noul", "noul": self.probabilities["yes"]}
        if self.type == "choice":
            return {
                "type": "choice",
                "choice": self.answer,
                "probabilities": self.probabilities,
                "confidence": self.confidence,
            }
        return {
            "type": "score",
            "score": self.score,
            "legend": {str(level): text for level, text in enumerate(self.legend or [])},
            "probabilities": self.probabilities,
            "confidence": self.confidence,
        }


def answer_from_probabilities(question: Choice | Score | Noul, probabilities: Sequence[float]) -> Answer:
    """Build a question's answer from its options' probabilities, given in the question's order.

    Raises ValueError when their number differs or when they do not sum to 1 (within 1e-6).
    """
    options = question.options
    if len(options) != len(probabilities):
        raise ValueError(f"{len(options)} options but {len(probabilities)} probabilities")
    if not abs(sum(probabilities) - 1.0) <= 1e-6:  # written so that NaN fails too
        raise ValueError(f"probabilities sum to {sum(probabilities)!r}, not to 1")
    mode = max(range(len(options)), key=lambda index: probabilities[index])  # max keeps the first of equals
    named = {option.key: float(p) for option, p in zip(options, probabilities, strict=True)}
    answer = options[mode].key
    if isinstance(question, Choice):
        return Answer(type="choice", answer=answer, probabilities=named, confidence=choice_confidence(probabilities))
    if isinstance(question, Score):
        expectation = sum(level * p for level, p in enumerate(probabilities))
        return Answer(
            type="score",
            answer=answer,
            probabilities=named,
            score=expectation,
            confidence=score_confidence(probabilities),
            legend=list(question.criteria),
        )
    return Answer(type="noul", answer=answer, probabilities=named)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(max - 1/n) / (1 - 1/n): 0 when all options are equal, 1 when one has all; 1 for a single option."""
    n = len(probabilities)
    return 1.0 if n == 1 else (max(probabilities) - 1 / n) / (1 - 1 / n)


def score_confidence(probabilities: Sequence[float]) -> float:
    """max(0, 1 - sum p_i |i - mode| / D), D the mean distance of the levels from the middle of the scale."""
    n = len(probabilities)
    mode = max(range(n), key=lambda level: probabilities[level])
    spread = sum(p * abs(level - mode) for level, p in enumerate(probabilities))
    scale = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
    return max(0.0, 1.0 - spread / scale)
