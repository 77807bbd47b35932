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
from worker.engine.forest import Forest, Pass, Read, Segment, Tree

ATTENTION = "nightcourt_forest"
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
# What modules pass beside the arguments that we follow, and that changes nothing here. Anything else may: refused.
HARMLESS = {
    "dropout",
    "is_causal",
    "position_ids",
    "position_embeddings",
    "use_cache",
    "output_attentions",
    "layer_idx",
}
QUERY_ROWS = 2048  # under a mask, attention takes this many queries at a time, to bound what a kernel makes of the mask
TOLERANCE = {torch.float32: 1e-3}  # of the check at load, relative; half precision rounds, wrong attention is far off
HALF_TOLERANCE = 0.1
_PROBE = (0, 1, 2, 3, 4, 5)  # the tokens of that check

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
        """True where a query may look: [1, 1, tokens of the span, prefix tokens + tokens of the span]."""
        tree_index, first, last = span
        if (found := self._masks.get((tree_index, window))) is not None:
            return found
        tree = self.forest.trees[tree_index]
        present = {segment: place for place, segment in enumerate(sorted({0, *self.packed.segments[first:last]}))}
        lineage = torch.zeros(len(present), len(present), dtype=torch.bool)
        for segment, place in present.items():
            lineage[place, [present[ancestor] for ancestor in tree.path(segment)]] = True
        rows = self.prefix_rows(tree_index)
        prefix = rows.stop - rows.start
        places = [present[segment] for segment in self.packed.segments[first:last]]
        key_places = torch.tensor([0] * prefix + places, device=self.device)
        key_positions = torch.tensor([*range(prefix), *self.packed.positions[first:last]], device=self.device)
        lineage = lineage.to(self.device)
        mask = torch.empty(last - first, len(key_places), dtype=torch.bool, device=self.device)
        for piece, query_places, query_positions in zip(
            mask.split(QUERY_ROWS),
            key_places[prefix:].split(QUERY_ROWS),
            key_positions[prefix:].split(QUERY_ROWS),
            strict=True,
        ):
            distance = query_positions[:, None] - key_positions[None, :]
            piece[:] = lineage[query_places][:, key_places] & (distance >= 0)
            if window is not None:
                piece &= distance < window
        self._masks[tree_index, window] = mask[None, None]
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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over the pass in hand; returns [1, tokens, heads, head_dim]."""
    running = _running.get()
    if running is None:
        raise RuntimeError("this model's attention works only inside a forest's passes")
    _refuse_unknown(module, attention_mask, others)
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
        outputs.append(_masked(queries, keys, values, mask, scaling, softcap))
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _refuse_unknown(module: torch.nn.Module, attention_mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    """Raise ModelError where a layer asks for an attention that ours is not."""
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise ModelError("its attention is bidirectional; expected a causal model")
    if attention_mask is not None:
        raise ModelError("its layers mask attention in a way of their own, which is not supported")
    unknown = sorted(name for name, value in others.items() if value is not None and name not in HARMLESS)
    if unknown:
        sinks = " (attention sinks)" if "s_aux" in unknown else ""
        raise ModelError(f"its attention takes {', '.join(unknown)}{sinks}, which is not supported")


def _masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention under a mask, [1, heads, tokens, head_dim]; a block of queries at a time.

    Key heads are repeated for their query heads: under a mask, the fused kernels on cards take no grouped heads.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    outputs = []
    for queries, seen in zip(query.split(QUERY_ROWS, dim=2), mask.split(QUERY_ROWS, dim=2), strict=True):
        if softcap is None:
            outputs.append(functional.scaled_dot_product_attention(queries, key, value, attn_mask=seen, scale=scaling))
            continue
        scores = queries @ key.transpose(2, 3) * (queries.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(scores.float().masked_fill(~seen, float("-inf")), dim=-1)
        outputs.append(weights.to(queries.dtype) @ value)
    return torch.cat(outputs, dim=2)


AttentionInterface.register(ATTENTION, _forest_attention)


class CausalBackbone(Backbone):
    """A transformers causal language model, taken over for forests; it cannot be used otherwise afterwards.

    Raises ModelError for a model whose attention does not go through the interface, or that has other layers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if getattr(
            model, "_is_stateful", False
        ):  # transformers' mark of recurrent layers, which older configs leave out
            kinds = {"recurrent"}
        if model.config.is_encoder_decoder or kinds - SUPPORTED_LAYERS:
            raise ModelError(
                f"{config.model_type} is not an attention-only causal model (layers: {', '.join(sorted(kinds))})"
            )
        self._decoder = model.get_decoder().eval()
        self._device = next(model.parameters()).device
        self._layers = set(range(int(config.num_hidden_layers)))
        self.max_length = int(config.max_position_embeddings)
        try:
            model.set_attn_implementation("eager")  # the model's own definition: others may leave out its soft caps
            expected = self._plain(_PROBE)
            model.set_attn_implementation(ATTENTION)
            self._check(expected)
        except ModelError as error:
            raise ModelError(f"{config.model_type} models are not supported: {error}") from error
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise ModelError(f"{config.model_type} models are not supported: {error}") from error

    @torch.inference_mode()
    def _plain(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """Hidden states of one sequence, before attention is taken over: [tokens, hidden]."""
        output = self._decoder(input_ids=torch.tensor([tokens], device=self._device), use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _check(self, expected: torch.Tensor) -> None:
        """One tiny forest shows that the model finds under our attention what it finds by itself."""
        middle = len(_PROBE) // 2
        beside = Segment(_PROBE[:1], 0)  # a second branch, which the first must not see
        tree = Tree(
            (Segment(_PROBE[:middle], -1), beside, Segment(_PROBE[middle:], 0)),
            tuple(Read(2, offset) for offset in range(len(_PROBE) - middle)),
        )
        [found] = self.hidden_states(Forest((tree,)))
        wanted = expected[middle:].float()
        difference = float((found.float() - wanted).norm() / wanted.norm())
        if not difference <= TOLERANCE.get(expected.dtype, HALF_TOLERANCE):  # written so that NaN fails too
            raise ModelError(f"with shared prefixes its hidden states differ by {difference:.1%} from the model's own")

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
        if running.layers != self._layers:
            raise ModelError(
                f"of {len(self._layers)} layers, {len(running.layers)} compute attention through transformers' "
                "AttentionInterface"
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden
