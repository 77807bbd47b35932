"""The two-pass engine against a plain evaluation of every question's full sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.families.tiny import CONTROL, KINDS, Naive, tokenizer, write_checkpoint
from worker.checkpoints import Checkpoint
from worker.contract import Answered, DocumentError, ErrorKind, Job, ModelError, QuestionSet
from worker.engine import forest
from worker.families.zeroshot import NO_DOCUMENT, READOUTS, ZeroShot
from worker.scorer import Scorer

QUESTIONS = QuestionSet.model_validate(
    {
        "dismissed": {"type": "noul", "instructions": "Is the appeal dismissed?", "criteria": {"true": "it fails"}},
        "area": {
            "type": "choice",
            "instructions": "Which area of law?",
            "criteria": {
                "contract": "a breach of contract",
                "crime": None,
                "droit de la famille": "",
                "other": {"a": 1},
            },
        },
        "tone": {"type": "score", "instructions": {"ask": "How severe?"}, "criteria": ["mild", "firm", "very severe"]},
        "one": {"type": "choice", "instructions": "Is there a choice?", "criteria": {"none": None}},
        "bare": {"type": "noul", "instructions": "هل رفضت المحكمة الاستئناف؟"},
    }
)
DOCUMENT = "The appeal is dismissed with costs. " * 6 + "المحكمة رفضت الاستئناف.\n\nL'appel est rejeté."
OTHER = "The court allowed the claim."


@pytest.fixture(scope="module", params=list(KINDS))
def checkpoint(request, tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def rendered(document: str, question, lettered: bool) -> str:
    """The whole string that a question's sequence is, written out apart from the family."""
    lines = [f"Question: {question.instructions}"]
    if isinstance(question.instructions, dict):
        lines = ['Question: {\n  "ask": "How severe?"\n}']
    for letter, option in zip("ABCDEFGH", question.options, strict=False):
        name = {"yes": "Yes", "no": "No"}.get(option.key, option.key)
        description = '{\n  "a": 1\n}' if isinstance(option.description, dict) else option.description
        shown = description if question.type == "score" else f"{name}: {description}" if description else name
        lines.append(f"{letter}. {shown}" if lettered else f"- {shown}")
    lines.append("Answer with the letter of the best option." if lettered else "Answer with the best option.")
    body = "\n".join(lines)
    return f"<|im_start|>user\nDocument:\n{document}\n\n{body}<|im_end|>\n<|im_start|>assistant\n"


def naive_probabilities(naive: Naive, document: str, question, readout: str) -> list[float]:
    def scores(text: str) -> torch.Tensor:
        prompt = rendered(text, question, readout != "likelihood")
        if readout != "likelihood":
            return naive.letters(prompt, len(question.options))
        answers = [
            option.description if question.type == "score" else {"yes": "Yes", "no": "No"}.get(option.key, option.key)
            for option in question.options
        ]
        return torch.tensor([naive.likelihood(prompt, answer) for answer in answers], dtype=torch.float64)

    found = scores(document)
    if readout != "letters":
        found = found - scores(NO_DOCUMENT)
    return torch.softmax(found, dim=0).tolist()


def compare(answered: Answered | DocumentError, naive: Naive, document: str, questions: QuestionSet, readout: str):
    assert isinstance(answered, Answered)
    for question_id, question in questions.items():
        found = list(answered.answers[question_id].probabilities.values())
        assert sum(found) == pytest.approx(1, abs=1e-9)
        assert found == pytest.approx(naive_probabilities(naive, document, question, readout), abs=1e-5), question_id


def job(text: str) -> Job:
    return Job(document_id="d", state=text)


@pytest.mark.parametrize("readout", READOUTS)
def test_answers_equal_the_plain_models_alone_and_in_company(checkpoint, readout):
    scorer, naive = Scorer.load(str(checkpoint), readout=readout), Naive(checkpoint)
    alone = scorer.score(job(DOCUMENT), QUESTIONS)
    compare(alone, naive, DOCUMENT, QUESTIONS, readout)
    first, second, third = scorer.score_many(
        [(job(OTHER), QUESTIONS), (job(DOCUMENT), QUESTIONS), (job(OTHER), QUESTIONS)]
    )
    compare(first, naive, OTHER, QUESTIONS, readout)
    compare(second, naive, DOCUMENT, QUESTIONS, readout)
    compare(third, naive, OTHER, QUESTIONS, readout)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("readout", READOUTS)
def test_answers_on_a_card_equal_the_plain_models(checkpoint, readout):
    torch.backends.cuda.matmul.allow_tf32 = False
    scorer, naive = Scorer.load(str(checkpoint), readout=readout, device="cuda:0", dtype="float32"), Naive(checkpoint)
    first, second = scorer.score_many([(job(OTHER), QUESTIONS), (job(DOCUMENT), QUESTIONS)])
    compare(first, naive, OTHER, QUESTIONS, readout)
    compare(second, naive, DOCUMENT, QUESTIONS, readout)


def test_answers_do_not_depend_on_the_other_questions_or_their_order(checkpoint):
    scorer = Scorer.load(str(checkpoint))
    together = scorer.score(job(DOCUMENT), QUESTIONS).answers
    backwards = QuestionSet(dict(reversed(list(QUESTIONS.items()))))
    for question_id, answer in scorer.score(job(DOCUMENT), backwards).answers.items():
        assert list(answer.probabilities.values()) == pytest.approx(
            list(together[question_id].probabilities.values()), abs=1e-5
        )
    for question_id, question in QUESTIONS.items():
        alone = scorer.score(job(DOCUMENT), QuestionSet({question_id: question})).answers[question_id]
        assert list(alone.probabilities.values()) == pytest.approx(
            list(together[question_id].probabilities.values()), abs=1e-5
        )


def test_the_document_decides(checkpoint):
    scorer = Scorer.load(str(checkpoint))
    one, other = (scorer.score(job(text), QUESTIONS).answers["area"].probabilities for text in (DOCUMENT, OTHER))
    assert max(abs(one[key] - other[key]) for key in one) > 1e-3


@pytest.mark.parametrize("budget", [1, 150])
def test_cut_branch_passes_change_nothing(tmp_path, monkeypatch, budget):
    folder = write_checkpoint(tmp_path)
    whole = Scorer.load(str(folder), readout="likelihood").score(job(DOCUMENT), QUESTIONS).answers
    planned = forest.Forest

    def small(trees: tuple[forest.Tree, ...]) -> forest.Forest:
        return planned(trees, branch_tokens=budget)

    monkeypatch.setattr("worker.scorer.Forest", small)
    cut = Scorer.load(str(folder), readout="likelihood").score(job(DOCUMENT), QUESTIONS).answers
    for question_id, answer in cut.items():
        assert list(answer.probabilities.values()) == pytest.approx(
            list(whole[question_id].probabilities.values()), abs=1e-6
        )


def test_a_document_takes_two_passes_whatever_the_number_of_questions(tmp_path, monkeypatch):
    scorer = Scorer.load(str(write_checkpoint(tmp_path)), readout="letters")
    calls = []
    decoder = scorer._family.backbone._decoder
    original = decoder.forward
    monkeypatch.setattr(decoder, "forward", lambda *given, **named: calls.append(1) or original(*given, **named))
    scorer.score(job(DOCUMENT), QuestionSet({f"q{n}": QUESTIONS["area"] for n in range(40)}))
    assert len(calls) == 2


def family(folder: Path, split: str) -> ZeroShot:
    return ZeroShot.load(
        Checkpoint("tiny", write_checkpoint(folder, split=split)), device="cpu", readout="letters", dtype="float32"
    )


@pytest.fixture(scope="module", params=["gpt2", "qwen", "unsplit"])
def tokenized(request, tmp_path_factory) -> ZeroShot:
    return family(tmp_path_factory.mktemp(request.param), request.param)


texts = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from([*CONTROL, "\n\n", "\n", " \n", "  ", "\t", "Question", ".\n", "\r\n", "المحكمة", "é", "🙂"]),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(document=texts)
def test_tokens_are_those_of_the_whole_rendered_string(tokenized, document):
    if not document.strip():
        return
    tree = tokenized.lay_out(document, QUESTIONS)
    prefix = tokenized.prompt.prefix(tokenized.escape(document.strip()))
    for segment, question in zip(tree.segments[1:], QUESTIONS.values(), strict=True):
        whole = tokenized.tokenizer.encode(prefix + tokenized.question_text(question), add_special_tokens=False)
        assert list(tree.segments[0].tokens + segment.tokens) == whole


@settings(max_examples=100, deadline=None)
@given(document=texts)
def test_no_document_can_forge_a_control_token(tokenized, document):
    control = set(tokenizer().convert_tokens_to_ids(CONTROL))
    written = tokenized.tokenizer.encode(tokenized.escape(document), add_special_tokens=False)
    assert not control & set(written)


def test_a_document_that_is_too_long_fails_with_its_tokens_and_the_limit(tmp_path):
    scorer = Scorer.load(str(write_checkpoint(tmp_path)))
    with pytest.raises(DocumentError, match=r"[\d,]+ tokens .* limit is 2,048") as found:
        scorer.score(job("The appeal is dismissed. " * 2000), QUESTIONS)
    assert found.value.kind is ErrorKind.DOCUMENT_TOO_LONG
    long, short = scorer.score_many([(job("dismissed " * 3000), QUESTIONS), (job(OTHER), QUESTIONS)])
    assert isinstance(long, DocumentError)
    assert isinstance(short, Answered)


def test_an_empty_document_fails(tmp_path):
    scorer = Scorer.load(str(write_checkpoint(tmp_path)))
    with pytest.raises(DocumentError) as found:
        scorer.score(job(" \n\t"), QUESTIONS)
    assert found.value.kind is ErrorKind.EMPTY_DOCUMENT


def test_more_options_than_letters_are_refused_by_letters_and_answered_by_likelihood(tmp_path):
    many = QuestionSet.model_validate(
        {"many": {"type": "choice", "instructions": "Which?", "criteria": {f"option {n}": None for n in range(255)}}}
    )
    folder = str(write_checkpoint(tmp_path, max_position_embeddings=8192))
    with pytest.raises(DocumentError, match="likelihood") as found:
        Scorer.load(folder, readout="letters").score(job(OTHER), many)
    assert found.value.kind is ErrorKind.UNSUPPORTED_QUESTION
    answered = Scorer.load(folder, readout="likelihood").score(job(OTHER), many)
    assert sum(answered.answers["many"].probabilities.values()) == pytest.approx(1, abs=1e-9)


def test_a_model_that_cannot_be_used_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ModelError, match="nosuch: not found; expected smollm2, a folder"):
        Scorer.load("nosuch")
    with pytest.raises(ModelError, match=r"no config\.json"):
        Scorer.load(str(tmp_path))
    folder = write_checkpoint(tmp_path / "tiny")
    with pytest.raises(ModelError, match="readout nosuch"):
        Scorer.load(str(folder), readout="nosuch")
    with pytest.raises(ModelError, match="expected cpu or cuda"):
        Scorer.load(str(folder), device="nosuch")
    with pytest.raises(ModelError, match="cuda:99"):
        Scorer.load(str(folder), device="cuda:99")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="chat template"):
        Scorer.load(str(folder))


def test_a_truncated_weights_file_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "tiny")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="does not load"):
        Scorer.load(str(folder))


def test_the_identity_follows_the_weights_and_not_the_folders_name(tmp_path):
    one = Scorer.load(str(write_checkpoint(tmp_path / "one"))).identity
    same = Scorer.load(str(write_checkpoint(tmp_path / "two"))).identity
    other = Scorer.load(str(write_checkpoint(tmp_path / "three", seed=1))).identity
    assert one.digest() == same.digest() != other.digest()
