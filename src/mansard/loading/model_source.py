"""What a person names as a model, turned into a `ModelSpec`: preset, config.json, directory, GGUF file or cached id.

Nothing is downloaded: a Hugging Face id is looked up among the presets and in the local cache only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec
from mansard.specs.model_presets import find_preset

MAX_CONFIG_BYTES = 16 << 20


def load_model_spec(text: str) -> ModelSpec:
    """Return the architecture of what `text` names.

    In this order: an existing file or directory, a Hugging Face id in the local cache, a preset's name or
    alias. Raises: ValueError with the remedy when it is none of them or cannot be read.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return _from_directory(path)
    if path.is_file():
        return _from_gguf(path) if _is_gguf(path) else _from_config(path, path.parent.name)
    if path.suffix in (".gguf", ".json"):
        raise ValueError(f"there is no file {text} (give an existing file, or a preset's name)")
    cached = cached_config(text)
    return _from_config(cached, text) if cached else find_preset(text).spec()


def cached_config(hf_id: str) -> Path | None:
    """Return the newest cached config.json of a Hugging Face id, or None; the network is not asked.

    Source: the cache layout of huggingface_hub (models--owner--name/snapshots/<revision>).
    """
    if hf_id.count("/") != 1 or ".." in hf_id:
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = (hub / f"models--{hf_id.replace('/', '--')}" / "snapshots").glob("*/config.json")
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def _from_directory(path: Path) -> ModelSpec:
    if (path / "config.json").is_file():
        return _from_config(path / "config.json", path.name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _from_gguf(files[0])
    raise ValueError(
        f"directory {path} has no config.json and {len(files)} GGUF files "
        "(give one file, or a directory with config.json)"
    )


def _from_config(path: Path, name: str) -> ModelSpec:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; a config.json has at most {MAX_CONFIG_BYTES:,}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {path} as a config.json: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object (give a Hugging Face config.json)")
    return from_hf(config, name=name)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _from_gguf(path: Path) -> ModelSpec:
    from mansard.loading.ggml_blocks import dequantize
    from mansard.loading.gguf import GgufFile
    from mansard.specs.gguf_config import ROPE_FACTOR_TENSORS, from_gguf

    file = GgufFile.open(path)
    factors = {n: dequantize(file.tensors[n]).tolist() for n in ROPE_FACTOR_TENSORS if n in file.tensors}
    return from_gguf(file.metadata, file.tensors.keys(), rope_factors=factors, name=path.stem)
