"""Questions in the System One form: choice, score and noul, and the ordered set of them that a run asks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_serializer

from worker.contract import wire

MAX_QUESTIONS = 4096
MAX_CHOICE_OPTIONS = 255
MIN_SCORE_LEVELS, MAX_SCORE_LEVELS = 2, 10

# What a model may be shown: plain text, or structured text that a family renders in its own way.
Text = str | dict[str, Any] | list[Any]


class Option(NamedTuple):
    """What a question chooses between: the key that names it in answers, and what the question says of it."""

    key: str
    description: Text | None


class _Question(BaseModel):
    # Unknown fields are ignored, as the form asks: a question file written for another server works unchanged.
    model_config = ConfigDict(frozen=True, extra="ignore")

    instructions: Text

    @field_validator("instructions")
    @classmethod
    def _not_blank(cls, value: Text) -> Text:
        if not (value.strip() if isinstance(value, str) else value):
            raise ValueError("instructions are empty: write what the model is asked")
        return value


class Choice(_Question):
    """Exactly one of 1 to 255 named options. A single option is valid and always has probability 1."""

    type: Literal["choice"] = "choice"
    criteria: dict[str, Text | None] = Field(min_length=1, max_length=MAX_CHOICE_OPTIONS)

    @property
    def options(self) -> list[Option]:
        return [Option(name, description) for name, description in self.criteria.items()]


class Score(_Question):
    """A level on an ordered scale of 2 to 10 descriptions, low to high; options are named by zero-based index."""

    type: Literal["score"] = "score"
    criteria: list[Text] = Field(min_length=MIN_SCORE_LEVELS, max_length=MAX_SCORE_LEVELS)

    @property
    def options(self) -> list[Option]:
        return [Option(str(level), description) for level, description in enumerate(self.criteria)]


class NoulCriteria(BaseModel):
    """What yes and no mean; either may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    yes: Text | None = Field(default=None, alias="true")
    no: Text | None = Field(default=None, alias="false")

    @model_serializer
    def _only_given(self) -> dict[str, Any]:
        return {key: text for key, text in (("true", self.yes), ("false", self.no)) if text is not None}


class Noul(_Question):
    """A yes/no question."""

    type: Literal["noul"] = "noul"
    criteria: NoulCriteria | None = None

    @property
    def options(self) -> list[Option]:
        criteria = self.criteria or NoulCriteria()
        return [Option("yes", criteria.yes), Option("no", criteria.no)]


Question = Annotated[Choice | Score | Noul, Field(discriminator="type")]


class QuestionSet(RootModel[dict[str, Question]]):
    """Ordered questions by id: the System One `questions` map."""

    model_config = ConfigDict(frozen=True)

    root: dict[str, Question] = Field(min_length=1, max_length=MAX_QUESTIONS)

    @field_validator("root")
    @classmethod
    def _named(cls, value: dict[str, Question]) -> dict[str, Question]:
        if any(not question_id.strip() for question_id in value):
            raise ValueError("a question has an empty id")
        return value

    def __len__(self) -> int:
        return len(self.root)

    def ids(self) -> list[str]:
        return list(self.root)

    def items(self) -> Iterator[tuple[str, Choice | Score | Noul]]:
        yield from self.root.items()

    def values(self) -> Iterator[Choice | Score | Noul]:
        yield from self.root.values()

    def __getitem__(self, question_id: str) -> Choice | Score | Noul:
        return self.root[question_id]

    @property
    def option_count(self) -> int:
        return sum(len(question.options) for question in self.root.values())

    def as_map(self) -> dict[str, Any]:
        """The plain System One map, as it travels and as it is written beside results."""
        plain: dict[str, Any] = self.model_dump(mode="json")
        return plain

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the map with its order: two sets with one digest give one set of answers."""
        return wire.digest(self.as_map())
