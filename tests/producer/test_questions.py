"""Question sets load from what people type, and a bad one is refused with every problem named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.questions import load_questions, parse_questions, warnings
from worker.contract import QuestionSet, UsageError


def load(tmp_path, text, name="questions.yaml"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return load_questions(tmp_path / name)


def refusal(tmp_path, text, name="questions.yaml"):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text, name)
    assert "pydantic" not in str(caught.value)
    return str(caught.value)


LONG = {
    "urgent": {"type": "noul", "instructions": "Urgent?", "criteria": {"true": "Time-sensitive"}},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "Payments", "sales": None}},
    "mood": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Angry"]},
}


@pytest.mark.parametrize("value", [LONG, {"questions": LONG}, {"state": "x", "questions": LONG, "model": "m"}])
def test_the_system_one_form_loads_unchanged_as_a_map_a_file_or_a_request(tmp_path, value):
    assert load(tmp_path, json.dumps(value), "q.json").as_map() == LONG
    assert load(tmp_path, json.dumps(value), "q.yaml").as_map() == LONG


def test_short_forms_mean_what_they_look_like(tmp_path):
    questions = load(
        tmp_path,
        """
        Who won?: [claimant, defendant]
        urgent: Is it urgent?
        team: {ask: 'Which team?', options: {billing: Payments, sales: }}
        listed: {ask: 'Which?', options: [a, b: described]}
        typed: {type: choice, instructions: 'Which?', criteria: [a, b]}
        mood: {ask: 'How angry?', levels: [Calm, Angry]}
        plain: {ask: 'Is it?'}
        described: {ask: 'Is it?', criteria: {yes: It is, no: It is not}}
        map: {ask: 'Which?', criteria: {a: , b: }}
        """,
    ).as_map()
    assert questions["Who won?"] == {
        "type": "choice", "instructions": "Who won?", "criteria": {"claimant": None, "defendant": None},
    }  # fmt: skip
    assert questions["urgent"] == {"type": "noul", "instructions": "Is it urgent?", "criteria": None}
    assert questions["team"]["criteria"] == {"billing": "Payments", "sales": None}
    assert questions["listed"]["criteria"] == {"a": None, "b": "described"}
    assert questions["typed"]["criteria"] == {"a": None, "b": None}
    assert questions["mood"] == {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Angry"]}
    assert questions["plain"]["type"] == "noul"
    assert questions["described"] == {
        "type": "noul", "instructions": "Is it?", "criteria": {"true": "It is", "false": "It is not"},
    }  # fmt: skip
    assert questions["map"]["type"] == "choice"


def test_numbers_and_dates_as_options_are_the_text_that_was_typed(tmp_path):
    questions = load(tmp_path, "q: {ask: 'Which?', options: [007, 1.10, 12:30, 1_000, 2024-01-31]}")
    assert [option.key for option in questions["q"].options] == ["007", "1.10", "12:30", "1_000", "2024-01-31"]


def test_numbers_inside_structured_text_stay_numbers(tmp_path):
    questions = load(tmp_path, "q: {ask: {text: 'Which?', weight: 0.5, n: 3}, options: [a, b]}")
    assert questions["q"].instructions == {"text": "Which?", "weight": 0.5, "n": 3}
    assert len(questions.digest) == 64


def test_a_boolean_as_an_option_is_refused_with_the_advice_to_quote(tmp_path):
    for written in ("[yes, no]", "{yes: a, no: b}"):
        message = refusal(tmp_path, f"q: {{ask: 'Which?', options: {written}}}")
        assert "'q'" in message and "quotes" in message
    assert [o.key for o in load(tmp_path, "q: {ask: 'Which?', options: ['yes', 'no']}")["q"].options] == ["yes", "no"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q: {type: choice, instructions: 'Which?'}", ["'q'", "options: missing"]),
        ("q: {type: score, ask: 'How?'}", ["'q'", "levels: missing"]),
        ("q: {type: chioce, ask: 'Which?'}", ["'q'", "type: expected choice, score or noul", "'chioce'"]),
        ("q: {type: noul}", ["'q'", "instructions: missing"]),
        ("q: {ask: ' '}", ["'q'", "instructions", "empty"]),
        ("q: {ask: a, instructions: b}", ["'q'", "given twice"]),
        ("q: {ask: a, options: []}", ["'q'", "criteria: expected at least 1, found 0"]),
        ("q: {ask: a, levels: [one]}", ["'q'", "criteria: expected at least 2, found 1"]),
        ("q: {ask: a, levels: [a,b,c,d,e,f,g,h,i,j,k]}", ["'q'", "expected at most 10, found 11"]),
        ("q: {ask: a, levels: [a, ]}\nr: 3", ["'r'", "a number"]),
        ("q: {ask: a, criteria: [a, b]}", ["'q'", "`options` or `levels`"]),
        ("q: {ask: a, options: [a, a]}", ["'q'", "options: option 'a' is given twice"]),
        ("q: {ask: a, options: [1, '1']}", ["'q'", "option '1' is given twice"]),
        ("q: {type: noul, ask: a, criteria: {maybe: x}}", ["'q'", "criteria", "'maybe'"]),
        ("q: {type: noul, ask: a, options: [x]}", ["'q'", "options: belongs to a choice"]),
        ("q: {type: choice, ask: a, criteria: {a: yes}}", ["'q'", "criteria.a", "quotes"]),
        ("q: {type: choice, ask: a, criteria: {a: null, b: [}}", ["not valid YAML", "line 1"]),
        ("q: a\nq: b", ["'q' is given twice", "line 2"]),
        ("q: {ask: a, options: {x: 1, x: 2}}", ["'x' is given twice"]),
        ("q: {ask: Which?, options: [a]}", ["not valid YAML", "in quotes"]),
        ("yes: Is it?", ["question id true", "quotes"]),
        ("questions: {}", ["no questions"]),
        ("questions: [a]", ["expected a map", "a list"]),
        ("- a", ["expected a map", "a list"]),
        ("", ["expected a map", "nothing"]),
        ("q: &q {ask: *q}", ["contains itself"]),
    ],
)
def test_a_bad_set_is_refused_naming_the_question_and_the_field(tmp_path, text, words):
    message = refusal(tmp_path, text)
    assert "questions.yaml" in message
    for word in words:
        assert word in message


def test_all_problems_are_listed_and_not_only_the_first(tmp_path):
    message = refusal(tmp_path, "a: {type: nope}\nb: {ask: x, options: []}\nc: {ask: fine}\nd: 3")
    assert "'a': instructions: missing" in message
    assert "'a': type: expected" in message
    assert "'b': criteria" in message
    assert "'d': expected a question" in message
    assert "'c'" not in message


def test_json_is_refused_for_duplicate_keys_and_for_what_is_not_json(tmp_path):
    assert "'q' is given twice" in refusal(tmp_path, '{"q": "a", "q": "b"}', "q.json")
    assert "not valid JSON" in refusal(tmp_path, '{"q": NaN}', "q.json")
    assert "not valid JSON" in refusal(tmp_path, '{"q": ', "q.json")


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not found"):
        load_questions(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"q: caf\xe9?")
    with pytest.raises(UsageError, match="UTF-8"):
        load_questions(tmp_path / "latin.yaml")


def test_yaml_makes_no_python_objects(tmp_path):
    assert "not valid YAML" in refusal(tmp_path, "q: !!python/object/apply:os.getcwd []")


def test_what_is_valid_and_probably_not_meant_is_warned_of():
    found = warnings(parse_questions({"a": ["only"], "b": {"ask": "?", "options": {"x": "same", "y": "same"}}}, "set"))
    assert len(found) == 2
    assert "'a'" in found[0] and "always be 1" in found[0]
    assert "'x' and 'y'" in found[1]
    assert warnings(parse_questions({"c": ["x", "y"]}, "set")) == []


names = st.text(min_size=1, max_size=12).filter(lambda text: text.strip())
texts = names | st.dictionaries(names, st.integers() | names, min_size=1, max_size=3)
questions = st.one_of(
    st.builds(
        lambda ask, options: {"type": "choice", "instructions": ask, "criteria": options},
        texts, st.dictionaries(names, st.none() | texts, min_size=1, max_size=5),
    ),
    st.builds(
        lambda ask, levels: {"type": "score", "instructions": ask, "criteria": levels},
        texts, st.lists(texts, min_size=2, max_size=10),
    ),
    st.builds(lambda ask: {"type": "noul", "instructions": ask, "criteria": None}, texts),
)  # fmt: skip


@given(st.dictionaries(names, questions, min_size=1, max_size=4))
def test_every_valid_system_one_map_is_read_as_the_contract_reads_it(value):
    assert parse_questions({"questions": value}, "set").as_map() == QuestionSet.model_validate(value).as_map()


@given(names.filter(lambda name: name != "questions"), st.lists(names, min_size=1, max_size=6, unique=True))
def test_a_list_is_a_choice_of_its_texts_in_their_order(question, options):
    read = parse_questions({question: options}, "set")[question]
    assert [option.key for option in read.options] == options
    assert read.instructions == question
