"""The models on the wire, against the System One form's own example and formulas."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from worker.contract import (
    Answered,
    Job,
    ModelIdentity,
    QuestionSet,
    Usage,
    answer_from_probabilities,
    job_key,
    wire,
)

REQUEST = {
    "urgent": {
        "type": "noul",
        "instructions": "Does this convey urgency?",
        "criteria": {"true": "Explicitly time-sensitive"},
    },
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "Payments, refunds", "sales": None},
    },
    "mood": {"type": "score", "instructions": "How frustrated?", "criteria": ["Calm", "Frustrated", "Very angry"]},
}
QUESTIONS = QuestionSet.model_validate(REQUEST)


def test_answers_take_the_system_one_form():
    assert answer_from_probabilities(QUESTIONS["urgent"], [0.95, 0.05]).system_one() == {"type": "noul", "noul": 0.95}
    team = answer_from_probabilities(QUESTIONS["team"], [0.88, 0.12]).system_one()
    assert team["choice"] == "billing"
    assert list(team["probabilities"]) == ["billing", "sales"]
    assert team["confidence"] == pytest.approx(0.76)
    mood = answer_from_probabilities(QUESTIONS["mood"], [0.0, 0.95, 0.05]).system_one()
    assert mood["score"] == pytest.approx(1.05)
    assert mood["legend"] == {"0": "Calm", "1": "Frustrated", "2": "Very angry"}
    assert mood["confidence"] == pytest.approx(1 - 0.05 / (2 / 3))


def test_the_first_of_equally_probable_options_is_the_answer():
    assert answer_from_probabilities(QUESTIONS["team"], [0.5, 0.5]).answer == "billing"


def test_a_choice_of_one_option_is_certain():
    one = QuestionSet.model_validate({"q": {"type": "choice", "instructions": "?", "criteria": {"only": None}}})
    answer = answer_from_probabilities(one["q"], [1.0])
    assert (answer.answer, answer.confidence) == ("only", 1.0)


@pytest.mark.parametrize("probabilities", [[0.5, 0.4], [float("nan"), 0.5], [1.0], [0.2, 0.3, 0.5]])
def test_what_is_no_distribution_over_the_options_is_refused(probabilities):
    with pytest.raises(ValueError, match="probabilities"):
        answer_from_probabilities(QUESTIONS["team"], probabilities)


@pytest.mark.parametrize(
    "question",
    [
        {"type": "choice", "instructions": "?", "criteria": {}},
        {"type": "choice", "instructions": "?", "criteria": {str(n): None for n in range(256)}},
        {"type": "choice", "instructions": "?"},
        {"type": "score", "instructions": "?", "criteria": ["one"]},
        {"type": "score", "instructions": "?", "criteria": ["level"] * 11},
        {"type": "noul", "instructions": " "},
        {"type": "noul", "instructions": "?", "criteria": {"maybe": "x"}},
        {"type": "essay", "instructions": "?"},
    ],
)
def test_a_question_outside_the_form_is_refused(question):
    with pytest.raises(ValidationError):
        QuestionSet.model_validate({"q": question})


def test_questions_travel_unchanged_and_their_order_is_part_of_the_digest():
    assert QuestionSet.model_validate(QUESTIONS.as_map()) == QUESTIONS
    assert QUESTIONS.as_map()["urgent"]["criteria"] == {"true": "Explicitly time-sensitive"}
    backwards = QuestionSet.model_validate(dict(reversed(REQUEST.items())))
    assert backwards.digest != QUESTIONS.digest
    assert QuestionSet.model_validate(REQUEST).digest == QUESTIONS.digest


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(document_id=st.text(min_size=1), state=st.text() | st.lists(json) | st.dictionaries(st.text(), json))
def test_a_job_travels_unchanged(document_id, state):
    job = Job(document_id=document_id, state=state, questions=QUESTIONS)
    assert wire.decode(Job, wire.encode(job)) == job


def test_an_outcome_travels_unchanged():
    answers = {"team": answer_from_probabilities(QUESTIONS["team"], [0.1, 0.9])}
    answered = Answered(answers=answers, usage=Usage(input_tokens=2, computed_tokens=1))
    assert wire.decode(Answered, wire.encode(answered)) == answered


@settings(deadline=None)
@given(st.text())
def test_no_document_id_can_escape_a_key(document_id):
    key = job_key(document_id)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")


def test_the_name_a_user_gives_a_model_is_not_its_identity():
    fields = {
        "family": "zeroshot", "readout": "letters", "checkpoint_sha256": "a", "dtype": "float32", "max_length": 8,
        "engine_version": "1",
    }  # fmt: skip
    one, moved = ModelIdentity(name="a", **fields), ModelIdentity(name="b", **fields)
    assert one.digest() == moved.digest()
    assert one.digest() != ModelIdentity(name="a", **{**fields, "dtype": "bfloat16"}).digest()
