"""Which family a checkpoint belongs to, decided by what its folder contains."""

from __future__ import annotations

import orjson

from worker.checkpoints import Checkpoint, find_checkpoint
from worker.contract import ModelError
from worker.families.base import Family
from worker.families.zeroshot import ZeroShot


def load_family(model: str, *, device: str, readout: str | None, dtype: str) -> Family:
    """Find, recognise and load a model.

    Raises ModelError when it cannot be found, belongs to no family here, or does not load.
    """
    checkpoint = find_checkpoint(model)
    architectures = _architectures(checkpoint)
    if not any(name.endswith("ForCausalLM") for name in architectures):
        raise ModelError(
            f"model {model}: config.json names {', '.join(architectures) or 'no architecture'}; expected a causal "
            "language model (...ForCausalLM)"
        )
    return ZeroShot.load(checkpoint, device=device, readout=readout, dtype=dtype)


def _architectures(checkpoint: Checkpoint) -> list[str]:
    path = checkpoint.folder / "config.json"
    try:
        config = orjson.loads(path.read_bytes())
        return [str(name) for name in config.get("architectures") or []]
    except (orjson.JSONDecodeError, AttributeError, OSError) as error:
        raise ModelError(f"model {checkpoint.name}: {path} is not a model's configuration ({error})") from error
