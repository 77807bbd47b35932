"""JSON on every wire and in every file of ours, through orjson."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound=BaseModel)

_plain = TypeAdapter(Any)


def encode(value: BaseModel | Any) -> bytes:
    """Compact UTF-8 JSON of a model or of plain values; key order is kept.

    Raises TypeError for what JSON cannot hold. NaN and infinities, which JSON has no form for, become null.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return orjson.dumps(value)


def decode(model: type[Model], encoded: bytes | str) -> Model:
    """Parse and validate; raises pydantic.ValidationError for JSON that is not this model, or not JSON at all."""
    return model.model_validate_json(encoded)


def digest(value: Any) -> str:
    """SHA-256, in hex, of a value's JSON with its key order kept (the order of options changes answers)."""
    return hashlib.sha256(orjson.dumps(_plain.dump_python(value, mode="json"))).hexdigest()
