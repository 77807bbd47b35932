"""The causal backbone under trees of any depth, and which models it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.worker.engine.test_forest import trees
from worker.contract import ModelError
from worker.engine.backbones import causal
from worker.engine.backbones.causal import CausalBackbone
from worker.engine.forest import Forest, Read, Segment, Tree

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "vocab_size": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW = 6  # shorter than the sequences
# Post-norms, parallel blocks, layers without positions, windows, soft caps, experts, learned positions.
TAKEN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": WINDOW},
    "qwen3_moe": {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    "cohere2": {"sliding_window": WINDOW},
    "granite": {},
    "olmo2": {},
    "phi3": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gpt2": {},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bert": ({}, "bidirectional"),
    "bloom": ({}, "of 2 layers, 0"),  # computes attention by itself
    "doge": ({}, "mask"),
    "gpt_oss": ({"num_local_experts": 4, "layer_types": ["full_attention"] * 2}, "sinks"),
    "qwen3_next": ({"layer_types": ["linear_attention", "full_attention"]}, "attention-only"),
    "mamba": ({}, "attention-only"),
}


def model(kind: str, changes: dict[str, Any], attention: str = "eager"):
    torch.manual_seed(0)
    if kind == "mamba":  # by its class: where flash-linear-attention is installed, the name means another model
        made = MambaForCausalLM(MambaConfig(**{**SHAPE, **changes})).float().eval()
    else:
        config = CONFIG_MAPPING[kind](**{**SHAPE, **changes})
        made = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return made


def small(tree: Tree) -> Tree:
    """The same tree within the vocabulary; the root is made longer than the window."""
    segments = [
        Segment(tuple((token * 7 + index) % 60 + 3 for token in segment.tokens), segment.parent)
        for index, segment in enumerate(tree.segments)
    ]
    segments[0] = Segment((11, 5, 8, 41, 30, 9, 17, *segments[0].tokens), -1)
    return Tree(tuple(segments), tuple(Read(n, len(segment.tokens) - 1) for n, segment in enumerate(segments)))


@torch.no_grad()
def plain(decoder, tree: Tree) -> torch.Tensor:
    """The last hidden state of every segment's path, each as a sequence of its own."""
    states = []
    for index in range(len(tree.segments)):
        tokens = [token for at in reversed(tree.path(index)) for token in tree.segments[at].tokens]
        states.append(decoder(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0, -1])
    return torch.stack(states)


@pytest.fixture(scope="module", params=list(TAKEN))
def pair(request):
    """A model taken over, and the same one left as it is."""
    return CausalBackbone(model(request.param, TAKEN[request.param])), model(
        request.param, TAKEN[request.param]
    ).get_decoder()


@settings(max_examples=8, deadline=None)
@given(planted=st.lists(trees(), min_size=1, max_size=3), budget=st.sampled_from([1, 9, 1000]))
def test_every_path_is_as_if_computed_alone(pair, planted, budget):
    backbone, decoder = pair
    planted = [small(tree) for tree in planted]
    found = backbone.hidden_states(Forest(tuple(planted), branch_tokens=budget))
    for states, tree in zip(found, planted, strict=True):
        torch.testing.assert_close(states, plain(decoder, tree), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_queries_taken_in_blocks_change_nothing(kind, monkeypatch):
    tree = small(Tree((Segment(tuple(range(20)), -1), Segment(tuple(range(9)), 0), Segment((1, 2), 0)), ()))
    backbone = CausalBackbone(model(kind, TAKEN[kind]))
    [whole] = backbone.hidden_states(Forest((tree,)))
    monkeypatch.setattr(causal, "QUERY_ROWS", 4)
    [cut] = backbone.hidden_states(Forest((tree,)))
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", list(REFUSED))
def test_a_model_that_would_be_computed_wrongly_is_refused_with_the_reason(kind):
    changes, reason = REFUSED[kind]
    with pytest.raises(ModelError, match=reason):
        CausalBackbone(model(kind, changes, "eager"))


def test_a_model_whose_positions_are_not_followed_is_refused():
    made = model("llama", {})
    decoder = made.get_decoder()
    forward = decoder.forward
    # Stands for a model that counts positions by itself: it would take a branch for a new sequence.
    decoder.forward = lambda position_ids=None, **given: forward(**given)
    with pytest.raises(ModelError, match="differ by"):
        CausalBackbone(made)


def test_the_model_is_left_for_forests_only():
    made = model("llama", {})
    CausalBackbone(made)
    with pytest.raises(RuntimeError, match="only inside a forest"):
        made(torch.tensor([[1, 2, 3]]))
