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
        """The questions without a document, for readouts that compare with it; asked once a question set."""

    @abstractmethod
    def scores(self, questions: QuestionSet, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Each question's options as log-probabilities, [options]; hidden: [reads, hidden], as the tree's reads."""

    @abstractmethod
    def probabilities(self, scores: list[torch.Tensor], prior: list[torch.Tensor] | None) -> list[list[float]]:
        """Probabilities of every question's options, in order, given the scores without a document where asked."""
