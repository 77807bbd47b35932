"""What a family must provide, between a document's questions and the engine's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from worker.contract import ModelIdentity, QuestionSet, State
from worker.engine.backbones.base import Backbone
from worker.engine.forest import Tree


class Family(ABC):
    """A loaded model with its layout and its readout."""

    identity: ModelIdentity
    backbone: Backbone

    @abstractmethod
    def lay_out(self, state: State, questions: QuestionSet) -> Tree:
        """A document and its questions as a tree. Raises DocumentError for what this family cannot ask."""

    @abstractmethod
    def prior(self, questions: QuestionSet) -> Tree | None:
        """The questions without a document, for readouts that compare with it; computed once a question set."""

    @abstractmethod
    def probabilities(
        self, questions: QuestionSet, tree: Tree, hidden: torch.Tensor, prior: tuple[Tree, torch.Tensor] | None
    ) -> list[list[float]]:
        """Probabilities of every question's options, in order; hidden: [reads, hidden], as the tree's reads."""
