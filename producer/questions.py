"""Question sets as people write them: YAML or JSON, in the System One form or its short forms."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from worker.contract import Choice, Noul, QuestionSet, Score, Text, UsageError, wire

MODELS: dict[str, type[Choice | Score | Noul]] = {"choice": Choice, "score": Score, "noul": Noul}
QUESTION_FIELDS = {"type", "instructions", "ask", "criteria", "options", "levels"}
NOUL_KEYS = {"true": "true", "yes": "true", "false": "false", "no": "false"}
UNION_TAGS = {"str", "dict[str,any]", "list[any]"}
QUOTE = "without quotes YAML reads yes, no, on, off, true and false as booleans; put it in quotes"


def load_questions(path: Path) -> QuestionSet:
    """Read a question set from a YAML or JSON file; raises UsageError with every problem found, a line each."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"questions {path}: not found; expected a YAML or JSON file") from error
    except OSError as error:
        raise UsageError(f"questions {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"questions {path}: expected UTF-8 text; convert the file") from error
    try:
        if path.suffix.lower() == ".json":
            value = json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_no_constant)
        else:
            value = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
        raise UsageError(f"questions {path}: not valid {kind}: {_one_line(error)}") from error
    return parse_questions(value, f"questions {path}")


def parse_questions(value: Any, where: str) -> QuestionSet:
    """A question set from plain values: the map of questions, or a request or file that has it under `questions`.

    Short forms of a question: text alone (a noul), a list (a choice, with its id as the text that is asked),
    `ask` for `instructions`, `options` for a choice's criteria (a list will do), `levels` for a score's. `type` may be
    left out where these decide it.

    Raises UsageError that begins with `where` and lists every problem with its question and field.
    """
    try:
        questions, problems = _read_map(_question_map(value))
    except _Problem as problem:
        raise UsageError(f"{where}: {problem}") from problem
    except RecursionError as error:
        raise UsageError(f"{where}: a value contains itself, or is nested too deeply") from error
    if problems:
        raise UsageError("\n  ".join([f"{where}: {problems[0]}", *problems[1:]]))
    try:
        return QuestionSet(dict(questions))
    except ValidationError as error:
        raise UsageError(f"{where}: " + "; ".join(dict.fromkeys(_plain(item) for item in error.errors()))) from error


def warnings(questions: QuestionSet) -> list[str]:
    """What is valid and probably not meant."""
    found = []
    for question_id, question in questions.items():
        options = question.options
        if len(options) == 1:
            found.append(
                f"question {question_id!r}: only one option ({options[0].key!r}); its probability will always be 1"
            )
        described: dict[bytes, str] = {}
        for option in options:
            if option.description is None:
                continue
            earlier = described.setdefault(wire.encode(option.description), option.key)
            if earlier != option.key:
                found.append(
                    f"question {question_id!r}: options {earlier!r} and {option.key!r} have the same description"
                )
    return found


class _Problem(Exception):
    """One thing wrong with a question; the message starts with the field."""


def _question_map(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Problem(f"expected a map from question id to question, found {_kind(value)}")
    questions: dict[Any, Any] = value
    if "questions" in value and not _is_question(value["questions"]):
        questions = value["questions"]
        if not isinstance(questions, dict):
            raise _Problem(f"`questions`: expected a map from question id to question, found {_kind(questions)}")
    if not questions:
        raise _Problem("there are no questions; expected at least one")
    return questions


def _is_question(value: Any) -> bool:
    """Whether a value under `questions` is one question of that name, and not the map of questions."""
    return isinstance(value, dict) and bool({"instructions", "ask"} & value.keys()) and value.keys() <= QUESTION_FIELDS


def _read_map(value: dict[Any, Any]) -> tuple[dict[str, Choice | Score | Noul], list[str]]:
    questions: dict[str, Choice | Score | Noul] = {}
    problems: list[str] = []
    for key, written in value.items():
        try:
            question_id = _key(key, "question id")
        except _Problem as problem:
            problems.append(str(problem))
            continue
        if not question_id.strip():
            problems.append(f"question {question_id!r}: the id is empty; give the question a name")
        if question_id in questions:
            problems.append(f"question {question_id!r}: the id is used twice")
        try:
            questions[question_id] = _question(question_id, written)
        except _Problem as problem:
            problems += [f"question {question_id!r}: {line}" for line in str(problem).split("\n")]
    return questions, problems


def _question(question_id: str, written: Any) -> Choice | Score | Noul:
    fields = _long_form(question_id, written)
    try:
        return MODELS[fields["type"]].model_validate(fields)
    except ValidationError as error:
        raise _Problem("\n".join(dict.fromkeys(_plain(item) for item in error.errors()))) from error


def _long_form(question_id: str, written: Any) -> dict[str, Any]:
    """A question as the System One form has it, checked as far as its shape decides what it is."""
    if isinstance(written, str):
        return {"type": "noul", "instructions": written}
    if isinstance(written, list):
        return {"type": "choice", "instructions": question_id, "criteria": _options(written, "options")}
    if not isinstance(written, dict):
        raise _Problem(f"expected a question (a map, text, or a list of options), found {_kind(written)}")
    problems: list[str] = []
    fields: dict[str, Any] = {}
    for read in (_read_instructions, _read_criteria):
        try:
            fields |= read(written)
        except _Problem as problem:
            problems.append(str(problem))
    if problems:
        raise _Problem("\n".join(problems))
    return fields


def _read_instructions(written: dict[Any, Any]) -> dict[str, Any]:
    given = [name for name in ("instructions", "ask") if name in written]
    if len(given) == 2:
        raise _Problem("instructions: given twice, as `instructions` and as `ask`; keep one")
    if not given:
        raise _Problem("instructions: missing; write what the model is asked under `instructions` or `ask`")
    return {"instructions": _text(written[given[0]], given[0])}


def _read_criteria(written: dict[Any, Any]) -> dict[str, Any]:
    given = [name for name in ("criteria", "options", "levels") if name in written]
    if len(given) > 1:
        raise _Problem(f"criteria: given twice, as `{given[0]}` and as `{given[1]}`; keep one")
    field = given[0] if given else "criteria"
    criteria = written.get(field)
    kind = written["type"] if "type" in written else _infer_type(field, criteria)
    if not isinstance(kind, str) or kind not in MODELS:
        raise _Problem(f"type: expected choice, score or noul, found {_shown(kind)}")
    fitting = {"options": "choice", "levels": "score"}.get(field, kind)
    if fitting != kind:
        raise _Problem(f"{field}: belongs to a {fitting}, but the type is {kind}; correct one of them")
    if kind == "noul":
        return {"type": kind, "criteria": _noul_criteria(criteria)}
    if criteria is None:
        named = "options: missing; a choice needs" if kind == "choice" else "levels: missing; a score needs"
        raise _Problem(f"{named} them, under `criteria` or `{named.split(':')[0]}`")
    return {"type": kind, "criteria": _options(criteria, field) if kind == "choice" else _levels(criteria, field)}


def _infer_type(field: str, criteria: Any) -> str:
    if field == "options":
        return "choice"
    if field == "levels":
        return "score"
    if criteria is None or (isinstance(criteria, dict) and all(_noul_key(key) for key in criteria)):
        return "noul"
    if isinstance(criteria, dict):
        return "choice"
    if isinstance(criteria, list):
        raise _Problem(
            "type: missing, and a list under `criteria` may be a choice's options or a score's levels; "
            "add `type`, or write the list under `options` or `levels`"
        )
    raise _Problem(f"criteria: expected a map or a list, found {_kind(criteria)}")


def _noul_key(key: Any) -> str | None:
    if isinstance(key, bool):
        return "true" if key else "false"
    return NOUL_KEYS.get(key) if isinstance(key, str) else None


def _noul_criteria(criteria: Any) -> dict[str, Text] | None:
    if criteria is None:
        return None
    if not isinstance(criteria, dict):
        raise _Problem(f"criteria: a noul's are a map with true and/or false, found {_kind(criteria)}")
    found: dict[str, Text] = {}
    for key, description in criteria.items():
        name = _noul_key(key)
        if name is None:
            raise _Problem(f"criteria: a noul's keys are true and false, found {_shown(key)}; is it a choice?")
        if name in found:
            raise _Problem(f"criteria: {name} is described twice")
        if description is not None:
            found[name] = _text(description, f"criteria.{name}")
    return found


def _options(written: Any, field: str) -> dict[str, Text | None]:
    """A choice's options from a map to descriptions, or from a list of names (or of `name: description`)."""
    if isinstance(written, dict):
        pairs: Iterable[tuple[Any, Any]] = written.items()
    elif isinstance(written, list):
        pairs = [
            next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, None) for item in written
        ]
    else:
        raise _Problem(f"{field}: expected a list or a map of options, found {_kind(written)}")
    found: dict[str, Text | None] = {}
    for key, description in pairs:
        name = _key(key, f"{field}: option")
        if not name.strip():
            raise _Problem(f"{field}: an option has an empty name")
        if name in found:
            raise _Problem(f"{field}: option {name!r} is given twice")
        found[name] = None if description is None else _text(description, f"{field}.{name}")
    return found


def _levels(written: Any, field: str) -> list[Text]:
    if not isinstance(written, list):
        raise _Problem(f"{field}: a score's are an ordered list, low to high, found {_kind(written)}")
    return [_text(level, f"{field}.{number}") for number, level in enumerate(written)]


def _key(key: Any, what: str) -> str:
    if isinstance(key, bool):
        raise _Problem(f"{what} {str(key).lower()} is a boolean: {QUOTE}")
    if isinstance(key, int | float):
        return _as_written(key)
    if not isinstance(key, str):
        raise _Problem(f"{what}: expected text, found {_kind(key)}; put it in quotes")
    return key


def _text(value: Any, field: str) -> Text:
    if isinstance(value, bool):
        raise _Problem(f"{field}: expected text, found the boolean {str(value).lower()}: {QUOTE}")
    if isinstance(value, int | float):
        return _as_written(value)
    if isinstance(value, str | dict | list):
        return _json_value(value)  # type: ignore[no-any-return]
    raise _Problem(f"{field}: expected text, an object or a list, found {_kind(value)}")


def _json_value(value: Any) -> Any:
    """Structured text with plain JSON keys and numbers."""
    if isinstance(value, dict):
        return {_json_key(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, _WrittenInt):
        return int(value)
    return float(value) if isinstance(value, _WrittenFloat) else value


def _json_key(key: Any) -> str:
    return json.dumps(key) if key is None or isinstance(key, bool) else _as_written(key)


def _plain(error: Any) -> str:
    """One of pydantic's errors in words: field, what was expected, what was found."""
    path = [str(part) for part in error["loc"]]
    if error["type"].endswith("_type") and path and path[-1] in UNION_TAGS:
        path.pop()
    field, context, found = ".".join(path), error.get("ctx", {}), _kind(error["input"])
    if error["type"] == "value_error":
        problem = str(context["error"]).removeprefix("instructions are ")
    elif error["type"] == "too_short":
        problem = f"expected at least {context['min_length']}, found {context['actual_length']}"
    elif error["type"] == "too_long":
        problem = f"expected at most {context['max_length']}, found {context['actual_length'] or 'more'}"
    elif error["type"] == "missing":
        problem = "missing"
    else:
        problem = f"expected text, an object or a list, found {found}"
    return f"{field}: {problem}" if field else problem


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    kinds = {bool: "a boolean", str: "text", list: "a list", dict: "a map"}
    return (
        "a number"
        if type(value) not in kinds and isinstance(value, int | float)
        else kinds.get(type(value), repr(value))
    )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else _kind(value)


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, problem = error.problem_mark, error.problem or error.context or "unreadable"
        advice = "; between { } or [ ], put a text with a question mark in quotes" if "got '?'" in problem else ""
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{advice}"
    return " ".join(str(error).split())


class _WrittenInt(int):
    """A whole number that remembers how it was written: as an option it is the text 007, not 7."""

    text: str


class _WrittenFloat(float):
    text: str


def _as_written(value: Any) -> str:
    return str(getattr(value, "text", value))


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys, leaves dates as text, and remembers how numbers were written."""

    # dates are left as text: JSON has none
    yaml_implicit_resolvers = {  # noqa: RUF012 - pyyaml's own way to configure a loader
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        seen = set()
        for key in own:
            if not isinstance(key, yaml.ScalarNode):
                continue
            value = (key.tag, self.construct_object(key))
            if value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice; keep one", key.start_mark
                )
            seen.add(value)
        return super().construct_mapping(node, deep=deep)

    def construct_int(self, node: yaml.ScalarNode) -> _WrittenInt:
        number = _WrittenInt(self.construct_yaml_int(node))
        number.text = node.value
        return number

    def construct_float(self, node: yaml.ScalarNode) -> _WrittenFloat:
        number = _WrittenFloat(self.construct_yaml_float(node))
        number.text = node.value
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"the key {key!r} is given twice; keep one")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; put it in quotes")
