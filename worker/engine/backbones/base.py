"""What a backbone must provide: hidden states at the positions that a forest reads."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from worker.engine.forest import Forest


class Backbone(ABC):
    """A network that can continue many branches from one shared prefix."""

    max_length: int  # tokens of one full sequence

    @abstractmethod
    def hidden_states(self, forest: Forest) -> list[torch.Tensor]:
        """For each tree, the final-norm hidden states at its reads, in their order: [reads, hidden]."""
