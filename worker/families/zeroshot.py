"""Any instruction-tuned causal model, without training: its own chat template, and the next token as the answer."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import torch

from worker import __version__, settings
from worker.checkpoints import Checkpoint
from worker.contract import (
    Choice,
    DocumentError,
    ErrorKind,
    ModelError,
    ModelIdentity,
    Noul,
    Option,
    QuestionSet,
    Score,
    State,
    Text,
)
from worker.engine.backbones.causal import CausalBackbone
from worker.engine.forest import Read, Segment, Tree
from worker.engine.head import VocabularyHead
from worker.families.base import Family

READOUTS = ("letters", "letters-calibrated", "likelihood")
DEFAULT_READOUT = "likelihood"  # the most often right on the example archive: docs/readouts.md
LETTERS = string.ascii_uppercase + string.ascii_lowercase

# Marks in a message that no document contains: the template is rendered around them once, and cut there.
_DOCUMENT_MARK, _QUESTION_MARK = "\uf8f0document\uf8f0", "\uf8f0question\uf8f0"
# Templates that name the day get 1 January 2026: a run must not change its prompts at midnight.
_FIXED_DAY = "{%- macro strftime_now(form) -%}{{ form" + "".join(
    f" | replace('{field}', '{text}')"
    for field, text in {
        "%-d": "1", "%d": "01", "%B": "January", "%b": "Jan", "%m": "01", "%Y": "2026", "%y": "26", "%A": "Thursday",
        "%a": "Thu", "%H": "00", "%M": "00", "%S": "00",
    }.items()
) + " }}{%- endmacro -%}"  # fmt: skip
NO_DOCUMENT = "(The document is not available.)"

AnyQuestion = Choice | Score | Noul


@dataclass(frozen=True)
class Prompt:
    """The chat template, cut where the document and the question go."""

    head: str
    tail: str

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> Prompt:
        """Render the tokenizer's template once. Raises ModelError when there is none, or when it hides the message."""
        if not tokenizer.chat_template:
            raise ModelError(
                f"model {name}: its tokenizer has no chat template; an instruction-tuned model is needed for zeroshot"
            )
        message = f"Document:\n{_DOCUMENT_MARK}\n\n{_QUESTION_MARK}"
        try:
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": message}],
                chat_template=_FIXED_DAY + tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        except Exception as error:  # a template is a program, and may raise anything
            raise ModelError(f"model {name}: its chat template cannot be rendered ({error})") from error
        head, found_document, rest = rendered.partition(_DOCUMENT_MARK)
        between, found_question, tail = rest.partition(_QUESTION_MARK)
        if not (found_document and found_question and between == "\n\n"):
            raise ModelError(f"model {name}: its chat template changes the user's message; it cannot be used")
        return cls(head, tail)

    def prefix(self, document: str) -> str:
        return f"{self.head}{document}\n\n"


class ZeroShot(Family):
    """A causal model asked in words of ours; the document comes first, so that all questions share it."""

    def __init__(
        self, model: Any, tokenizer: Any, checkpoint: Checkpoint, *, readout: str | None = None, dtype: str = "float32"
    ) -> None:
        self.readout = readout or DEFAULT_READOUT
        if self.readout not in READOUTS:
            raise ModelError(f"readout {self.readout}: unknown; zeroshot has {', '.join(READOUTS)}")
        self.tokenizer = tokenizer
        self.prompt = Prompt.of(tokenizer, checkpoint.name)
        self.head = VocabularyHead(model)
        self.backbone = CausalBackbone(model)
        self._escaped = _control_strings(tokenizer)
        self._letter_tokens = [] if self.readout == "likelihood" else _letter_tokens(tokenizer, self.prompt.tail)
        self.identity = ModelIdentity(
            name=checkpoint.name,
            family="zeroshot",
            readout=self.readout,
            checkpoint_sha256=checkpoint.sha256(),
            revision=checkpoint.revision,
            dtype=dtype,
            max_length=self.backbone.max_length,
            engine_version=__version__,
        )

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, readout: str | None, dtype: str) -> ZeroShot:
        """Load weights and tokenizer from the checkpoint's folder onto a device. Raises ModelError."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        settings.quiet_transformers()
        try:
            # Without a plain no to remote code, transformers would ask on standard input.
            local = {"trust_remote_code": False, "local_files_only": True}
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, **local)
            model, loading = AutoModelForCausalLM.from_pretrained(
                checkpoint.folder, dtype=getattr(torch, dtype), output_loading_info=True, **local
            )
            model = model.to(device)
        except Exception as error:  # transformers and the readers under it raise many kinds
            what = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(f"model {checkpoint.name}: {checkpoint.folder} does not load: {what}") from error
        if loading["missing_keys"]:  # transformers fills these with random numbers
            missing = sorted(loading["missing_keys"])
            raise ModelError(
                f"model {checkpoint.name}: {checkpoint.folder} lacks {len(missing)} of its weights ({missing[0]} "
                "and so on); download it again"
            )
        return cls(model, tokenizer, checkpoint, readout=readout, dtype=dtype)

    def lay_out(self, state: State, questions: QuestionSet) -> Tree:
        document = render(state).strip()
        if not document:
            raise DocumentError(ErrorKind.EMPTY_DOCUMENT, "the document is empty")
        tree = self._tree(document, questions)
        longest = max(tree.path_lengths)
        if longest > self.backbone.max_length:
            raise DocumentError(
                ErrorKind.DOCUMENT_TOO_LONG,
                f"{longest:,} tokens with its longest question ({len(tree.segments[0].tokens):,} of them the "
                f"document); the model's limit is {self.backbone.max_length:,}",
            )
        return tree

    def prior(self, questions: QuestionSet) -> Tree | None:
        return None if self.readout == "letters" else self._tree(NO_DOCUMENT, questions)

    def question_text(self, question: AnyQuestion) -> str:
        """What follows the document, up to and including the opening of the model's turn."""
        lettered = self.readout != "likelihood"
        marks = [f"{letter}. " for letter in LETTERS] if lettered else ["- "] * len(question.options)
        if len(question.options) > len(marks):
            raise DocumentError(
                ErrorKind.UNSUPPORTED_QUESTION,
                f"a question has {len(question.options)} options and letters name {len(marks)}: use likelihood",
            )
        lines = [f"Question: {render(question.instructions)}"]
        lines += [
            f"{mark}{option_text(question, option)}" for mark, option in zip(marks, question.options, strict=False)
        ]
        lines.append("Answer with the letter of the best option." if lettered else "Answer with the best option.")
        return self.escape("\n".join(lines)) + self.prompt.tail

    def escape(self, text: str) -> str:
        """Text in which no control token of the tokenizer can be read: a space goes in after its first character."""
        return self._escaped.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _tree(self, document: str, questions: QuestionSet) -> Tree:
        prefix = self.prompt.prefix(self.escape(document))
        texts = [self.question_text(question) for question in questions.values()]
        shared, branches = self._share(prefix, texts)
        segments, reads = [Segment(tuple(shared), -1)], []
        for question, branch in zip(questions.values(), branches, strict=True):
            place = len(segments)
            segments.append(Segment(tuple(branch), 0))
            reads.append(Read(place, len(branch) - 1))
            if self.readout == "likelihood":
                for option in question.options:
                    tokens = self._encode(self.escape(answer_text(question, option)))
                    # The last token is what is predicted and never read, so it is not computed.
                    if len(tokens) > 1:
                        reads += [Read(len(segments), offset) for offset in range(len(tokens) - 1)]
                        segments.append(Segment(tuple(tokens[:-1]), place))
        return Tree(tuple(segments), tuple(reads))

    def _share(self, prefix: str, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Tokens of the prefix and of each text after it, equal to tokenizing every whole string.

        The prefix ends with a line break and every text begins with the same word, where tokenizers do not merge; one
        whole string is tokenized to see that, and if this tokenizer does merge there, all are.
        """
        shared, branches = self._encode(prefix), [self._encode(text) for text in texts]
        if self._encode(prefix + texts[0]) == shared + branches[0]:
            return shared, branches
        whole = [self._encode(prefix + text) for text in texts]
        shortest = min(map(len, whole)) - 1  # every branch keeps a token of its own
        common = next((at for at in range(shortest) if any(tokens[at] != whole[0][at] for tokens in whole)), shortest)
        common = min(common, len(shared))
        return whole[0][:common], [tokens[common:] for tokens in whole]

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def probabilities(self, scores: list[torch.Tensor], prior: list[torch.Tensor] | None) -> list[list[float]]:
        if prior is not None:
            scores = [found - before for found, before in zip(scores, prior, strict=True)]
        return [torch.softmax(found.double(), dim=0).tolist() for found in scores]

    def scores(self, questions: QuestionSet, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Each question's options as log-probabilities: of a letter, or of an option's text a token: [options]."""
        if self.readout != "likelihood":
            logits = self.head.logits(hidden, self._letter_tokens)
            counts = [len(question.options) for question in questions.values()]
            return [torch.log_softmax(row[:count], dim=0) for row, count in zip(logits, counts, strict=True)]
        rows: list[int] = []
        targets: list[int] = []
        sizes: list[list[int]] = []
        row = 0
        for question in questions.values():
            first, row = row, row + 1
            sizes.append([])
            for option in question.options:
                tokens = self._encode(self.escape(answer_text(question, option)))
                rows += [first, *range(row, row + len(tokens) - 1)]
                row += len(tokens) - 1
                targets += tokens
                sizes[-1].append(len(tokens))
        likelihoods = self.head.log_likelihoods(hidden[rows], targets)
        pieces = iter(likelihoods.split([size for question in sizes for size in question]))
        return [torch.stack([next(pieces).mean() for _ in question]) for question in sizes]


def render(text: Text) -> str:
    """Text as it is; anything else as JSON, indented for objects and arrays as a person would read it."""
    return text if isinstance(text, str) else orjson.dumps(text, option=orjson.OPT_INDENT_2).decode()


def option_text(question: AnyQuestion, option: Option) -> str:
    """How an option stands in the question's list: its name, and what is said of it."""
    description = "" if option.description is None else render(option.description)
    if isinstance(question, Score):
        return description
    name = answer_text(question, option)
    return f"{name}: {description}" if description else name


def answer_text(question: AnyQuestion, option: Option) -> str:
    """What the model would say to choose an option."""
    if isinstance(question, Noul):
        return option.key.capitalize()
    return render(option.description) if isinstance(question, Score) and option.description else option.key or '""'


def _control_strings(tokenizer: Any) -> re.Pattern[str]:
    """The tokenizer's added tokens, longest first: in a document they are words, and must not act as control tokens."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    strings = sorted((text for text in added if len(text) > 1 and text.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, strings)) or r"(?!)")


def _letter_tokens(tokenizer: Any, tail: str) -> list[int]:
    """The token of each letter as the first of the model's turn."""
    before = tokenizer.encode(tail, add_special_tokens=False)
    tokens = []
    for letter in LETTERS:
        after = tokenizer.encode(tail + letter, add_special_tokens=False)
        if after[:-1] != before:  # the letter merges into the template's end: take it by itself
            after = tokenizer.encode(letter, add_special_tokens=False)[-1:]
        tokens.append(after[-1])
    if len(set(tokens)) != len(LETTERS):
        raise ModelError("this tokenizer has no token of its own for each letter: use --readout likelihood")
    return tokens
