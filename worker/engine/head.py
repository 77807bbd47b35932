"""From hidden states to logits: only the vocabulary rows that are asked for, or token log-likelihoods."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional
from transformers import PreTrainedModel


class VocabularyHead:
    """A causal model's output embedding, with its scale and soft cap."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        output = model.get_output_embeddings()
        self._weight: torch.Tensor = output.weight  # [vocabulary, hidden]
        self._bias: torch.Tensor | None = getattr(output, "bias", None)
        self._cap = getattr(config, "final_logit_softcapping", None)
        # Cohere multiplies its logits by logit_scale; Granite divides them by logits_scaling.
        self._scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._scale /= float(getattr(config, "logits_scaling", None) or 1.0)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, tokens: Sequence[int] | None = None) -> torch.Tensor:
        """Logits of some tokens, or of the whole vocabulary: [reads, hidden] to [reads, tokens], float32."""
        weight, bias = self._weight, self._bias
        if tokens is not None:
            rows = torch.tensor(tokens, device=weight.device)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        logits = functional.linear(hidden, weight, bias).float() * self._scale
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap

    @torch.inference_mode()
    def log_likelihoods(self, hidden: torch.Tensor, targets: Sequence[int]) -> torch.Tensor:
        """log p(target) under each hidden state: [reads, hidden] and reads targets to [reads], float32."""
        wanted = torch.tensor(targets, device=hidden.device)
        pieces = []
        for rows, chosen in zip(hidden.split(256), wanted.split(256), strict=True):  # a vocabulary is wide
            logits = self.logits(rows)
            pieces.append(logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(dim=1))
        return torch.cat(pieces)
