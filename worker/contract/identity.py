"""Which model answered: enough to tell two sets of answers apart, and to obtain the same again."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from worker.contract import wire


class ModelIdentity(BaseModel):
    """All that decides a model's answers. Two identities with one digest answer alike, up to the stated tolerance."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # as the user named it: smollm2, a folder, or a hub id
    family: str
    readout: str  # how hidden states became probabilities
    checkpoint_sha256: str
    revision: str | None = None  # of the hub repository, where there is one
    dtype: str
    max_length: int  # tokens of one full sequence
    engine_version: str

    def digest(self) -> str:
        """Short hex name. The user's name for the model is left out: a folder may be moved and stay the same model."""
        return wire.digest(self.model_dump(exclude={"name"}))[:16]
