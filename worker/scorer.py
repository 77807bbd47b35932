"""Documents in, answers out: the loaded model as a worker's task sees it."""

from __future__ import annotations

import torch

from worker.contract import (
    Answered,
    DocumentError,
    Job,
    ModelError,
    ModelIdentity,
    QuestionSet,
    Usage,
    answer_from_probabilities,
)
from worker.engine.forest import Forest, Tree
from worker.families.base import Family
from worker.families.registry import load_family

KEPT_PRIORS = 64  # an archive may bring a question set with every document
DTYPES = ("float32", "bfloat16", "float16")


class Scorer:
    """A family with its model on a device; every document takes one prefix pass and one branch pass."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._priors: dict[str, list[torch.Tensor] | None] = {}

    @classmethod
    def load(cls, model: str, *, device: str = "cpu", readout: str | None = None, dtype: str | None = None) -> Scorer:
        """Load a model by name; dtype defaults to float32 on the CPU and bfloat16 on a card. Raises ModelError."""
        try:
            kind = torch.device(device).type
        except RuntimeError as error:
            raise ModelError(f"device {device}: expected cpu or cuda:N") from error
        if kind not in ("cpu", "cuda"):
            raise ModelError(f"device {device}: expected cpu or cuda:N")
        if kind == "cuda" and (torch.device(device).index or 0) >= torch.cuda.device_count():
            raise ModelError(
                f"device {device}: this machine has {torch.cuda.device_count()} card(s) that torch can use"
            )
        dtype = dtype or ("float32" if kind == "cpu" else "bfloat16")
        if dtype not in DTYPES:
            raise ModelError(f"dtype {dtype}: expected one of {', '.join(DTYPES)}")
        return cls(load_family(model, device=device, readout=readout, dtype=dtype))

    @property
    def identity(self) -> ModelIdentity:
        return self._family.identity

    def score(self, job: Job, questions: QuestionSet) -> Answered:
        """Answer every question about one document. Raises DocumentError."""
        [outcome] = self.score_many([(job, questions)])
        if isinstance(outcome, DocumentError):
            raise outcome
        return outcome

    def score_many(self, jobs: list[tuple[Job, QuestionSet]]) -> list[Answered | DocumentError]:
        """Several documents in the same two passes; one that cannot be asked is an error in its place."""
        trees: list[Tree | DocumentError] = []
        for job, questions in jobs:
            try:
                trees.append(self._family.lay_out(job.state, questions))
            except DocumentError as error:
                trees.append(error)
        planned = [tree for tree in trees if isinstance(tree, Tree)]
        hidden = iter(self._family.backbone.hidden_states(Forest(tuple(planned))) if planned else [])
        return [
            tree if isinstance(tree, DocumentError) else self._read(questions, tree, next(hidden))
            for tree, (_, questions) in zip(trees, jobs, strict=True)
        ]

    def _read(self, questions: QuestionSet, tree: Tree, hidden: torch.Tensor) -> Answered:
        found = self._family.probabilities(self._family.scores(questions, hidden), self._prior(questions))
        answers = {
            question_id: answer_from_probabilities(question, probabilities)
            for (question_id, question), probabilities in zip(questions.items(), found, strict=True)
        }
        return Answered(
            answers=answers,
            usage=Usage(input_tokens=tree.logical_tokens, computed_tokens=tree.computed_tokens),
        )

    def _prior(self, questions: QuestionSet) -> list[torch.Tensor] | None:
        """Scores without a document, computed once for each of the question sets asked last."""
        if questions.digest in self._priors:
            return self._priors[questions.digest]
        tree = self._family.prior(questions)
        found = tree and self._family.scores(questions, self._family.backbone.hidden_states(Forest((tree,)))[0])
        if len(self._priors) >= KEPT_PRIORS:
            del self._priors[next(iter(self._priors))]  # the oldest
        self._priors[questions.digest] = found
        return found
