"""Tiny random checkpoints in the published folder form, and the naive reference they are compared with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The splits of three tokenizer lines in use: GPT-2's, and the one that Llama 3 and Qwen share, where punctuation takes
# the line breaks after it; the third splits nothing, so that merges cross every border.
SPLITS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "qwen": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                    r"\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "unsplit": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
}
SENTENCES = [
    "Document:\nThe appeal is dismissed.\n\nQuestion: Is it?\nA. Yes\nB. No",
    "user\nDocument:\nThe court allowed the claim, with costs.\n\nQuestion: Which area?\nA. contract\nB. crime",
    "assistant\nA B C D E F G\nL'appel est rejeté.\n\nQuestion: Answer with the best option.\n\n",
    "المحكمة رفضت الاستئناف.\n\nQuestion: هل رفض؟",
]

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 64}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 64,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": ("gemma3_text", {"sliding_window": 64, "query_pre_attn_scalar": 8}),
}


@cache
def tokenizer(split: str = "gpt2") -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = SPLITS[split]
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    return fast


def write_checkpoint(folder: Path, kind: str = "llama", split: str = "gpt2", seed: int = 0, **changes: Any) -> Path:
    """A random model of a kind, as its authors would publish it."""
    torch.manual_seed(seed)
    model_type, extra = KINDS[kind]
    fast = tokenizer(split)
    config = CONFIG_MAPPING[model_type](**{**SHAPE, "vocab_size": len(fast), **extra, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for parameter in model.parameters():  # published initial scales leave every answer near uniform
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


class Naive:
    """Every question as its own full sequence through the plain model: no sharing, no cache, fp32."""

    def __init__(self, folder: Path, attention: str = "eager") -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def logits(self, text: str) -> torch.Tensor:
        """Logits after every token of a whole rendered string: [tokens, vocabulary]."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return self.model(torch.tensor([tokens]), use_cache=False).logits[0].float()

    def letters(self, text: str, options: int) -> torch.Tensor:
        """log p of the first option letters as the next token."""
        ids = [self.tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "ABCDEFGHIJKLMNOP"[:options]]
        return torch.log_softmax(self.logits(text)[-1][ids].double(), dim=0)

    def likelihood(self, text: str, answer: str) -> float:
        """Mean log p of the answer's tokens after the text."""
        before = self.tokenizer.encode(text, add_special_tokens=False)
        tokens = self.tokenizer.encode(answer, add_special_tokens=False)
        with torch.no_grad():
            logits = self.model(torch.tensor([before + tokens]), use_cache=False).logits[0].double()
        rows = torch.log_softmax(logits[len(before) - 1 : -1], dim=-1)
        return float(rows[range(len(tokens)), tokens].mean())
