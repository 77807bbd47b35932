"""Attention-only causal models: transformers' own modules under a tree-shaped attention of ours.

The model's decoder is called as it is, with true positions. It reaches attention through transformers' public
AttentionInterface, where our function stands: in the prefix pass it keeps each layer's keys and values, in a branch
pass it lets every token see its document, its ancestors and itself, and nothing else. So any decoder that uses the
interface works, with its own norms, rotary embeddings, sliding windows and soft caps.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from worker.contract import ModelError
from worker.engine.backbones.base import Backbone
from worker.engine.forest import Forest, Pass, Segment, Tree

ATTENTION = "nightcourt_forest"
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}

KeyValues = dict[int, tuple[torch.Tensor, torch.Tensor]]  # by layer; each [kv_heads, tokens, head_dim]


@dataclass
class _RunningPass:
    """What our attention function needs to know of the pass in hand."""

    forest: Forest
    packed: Pass
    prefixes: Pass | None  # None while the prefixes themselves are computed
    stored: KeyValues
    device: torch.device
    layers: set[int] = field(default_factory=set)
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)

    def prefix_rows(self, tree: int) -> slice:
        """Where a tree's prefix stands in the stored keys; a forest's prefixes are in the order of its trees."""
        if self.prefixes is None:
            return slice(0, 0)
        _, first, last = self.prefixes.spans[tree]
        return slice(first, last)

    def mask(self, span: tuple[int, int, int], window: int | None) -> torch.Tensor:
        """True where a query may look: [tokens of the span, prefix tokens + tokens of the span]."""
        tree_index, first, last = span
        if (found := self._masks.get((tree_index, window))) is not None:
            return found
        tree = self.forest.trees[tree_index]
        lineage = torch.zeros(len(tree.segments), len(tree.segments), dtype=torch.bool)
        for segment in set(self.packed.segments[first:last]):
            lineage[segment, tree.path(segment)] = True
        segments = torch.tensor(self.packed.segments[first:last])
        positions = torch.tensor(self.packed.positions[first:last])
        prefix = self.prefix_rows(tree_index)
        prefix_positions = torch.arange(prefix.stop - prefix.start)
        key_positions = torch.cat([prefix_positions, positions])
        key_segments = torch.cat([torch.zeros_like(prefix_positions), segments])
        distance = positions[:, None] - key_positions[None, :]
        mask = lineage[segments][:, key_segments] & (distance >= 0)
        if window is not None:
            mask &= distance < window
        self._masks[tree_index, window] = mask.to(self.device)
        return self._masks[tree_index, window]


_running: ContextVar[_RunningPass | None] = ContextVar("running_pass", default=None)


def _forest_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over the pass in hand; returns [1, tokens, heads, head_dim]."""
    running = _running.get()
    if running is None:
        raise RuntimeError("this model's attention works only inside a forest's passes")
    if s_aux is not None:
        raise ModelError("models with attention sinks are not supported")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    running.layers.add(layer)
    if running.prefixes is None:
        running.stored[layer] = (key[0], value[0])
    stored_keys, stored_values = running.stored[layer]
    # A window as long as the sequence hides nothing: the plain, faster form gives the same.
    if sliding_window is not None and max(running.packed.positions) < sliding_window:
        sliding_window = None
    outputs = []
    for span in running.packed.spans:
        tree, first, last = span
        queries = query[:, :, first:last]
        if running.prefixes is None and sliding_window is None and softcap is None:
            outputs.append(
                functional.scaled_dot_product_attention(
                    queries, key[:, :, first:last], value[:, :, first:last],
                    is_causal=True, scale=scaling, enable_gqa=True,
                )
            )  # fmt: skip
            continue
        rows = running.prefix_rows(tree)
        keys = torch.cat([stored_keys[None, :, rows], key[:, :, first:last]], dim=2)
        values = torch.cat([stored_values[None, :, rows], value[:, :, first:last]], dim=2)
        mask = running.mask(span, sliding_window)
        if softcap is None:
            output = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
            )
        else:
            output = _softcapped(queries, keys, values, mask, scaling or queries.shape[-1] ** -0.5, softcap)
        outputs.append(output)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _softcapped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float, cap: float
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = torch.tanh(query @ key.transpose(2, 3) * scaling / cap) * cap
    weights = torch.softmax(scores.float().masked_fill(~mask, float("-inf")), dim=-1)
    return weights.to(query.dtype) @ value


AttentionInterface.register(ATTENTION, _forest_attention)


class CausalBackbone(Backbone):
    """A transformers causal language model, taken over for forests; it cannot be used otherwise afterwards.

    Raises ModelError for a model whose attention does not go through the interface, or that has other layers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if model.config.is_encoder_decoder or kinds - SUPPORTED_LAYERS:
            raise ModelError(
                f"{config.model_type} is not an attention-only causal model (layers: {', '.join(sorted(kinds))})"
            )
        model.set_attn_implementation(ATTENTION)
        self._decoder = model.get_decoder().eval()
        self._device = next(model.parameters()).device
        self.max_length = int(config.max_position_embeddings)
        self._check(int(config.num_hidden_layers), str(config.model_type))

    def _check(self, layers: int, model_type: str) -> None:
        """One tiny forest shows that every layer asks our function, and that it finds what it needs."""
        tree = Tree((Segment((0, 1), -1), Segment((2,), 0)), ())
        forest = Forest((tree,))
        prefixes = forest.prefix_pass()
        stored: KeyValues = {}
        for packed, parent in ((prefixes, None), (forest.branch_passes()[0], prefixes)):
            running = _RunningPass(forest, packed, parent, stored, self._device)
            self._compute(running)
            if running.layers != set(range(layers)):
                raise ModelError(
                    f"{model_type} has {layers} layers, and {len(running.layers)} of them compute attention through "
                    "transformers' AttentionInterface: this model is not supported"
                )

    def hidden_states(self, forest: Forest) -> list[torch.Tensor]:
        found: list[dict[int, torch.Tensor]] = [{} for _ in forest.trees]
        stored: KeyValues = {}
        prefixes = forest.prefix_pass()
        plan = [(prefixes, None), *((packed, prefixes) for packed in forest.branch_passes())]
        for packed, parent in plan:
            hidden = self._compute(_RunningPass(forest, packed, parent, stored, self._device))
            for tree, which, row in packed.reads:
                found[tree][which] = hidden[row]
        return [
            torch.stack([states[which] for which in range(len(tree.reads))]) if tree.reads else torch.empty(0)
            for tree, states in zip(forest.trees, found, strict=True)
        ]

    @torch.inference_mode()
    def _compute(self, running: _RunningPass) -> torch.Tensor:
        """One pass through the decoder: [tokens, hidden]."""
        token = _running.set(running)
        try:
            output = self._decoder(
                input_ids=torch.tensor([running.packed.tokens], device=self._device),
                position_ids=torch.tensor([running.packed.positions], device=self._device),
                use_cache=False,
            )
        finally:
            _running.reset(token)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden
