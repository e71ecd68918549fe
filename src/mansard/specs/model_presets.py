"""Model presets: the published facts of well-known models, found by the names people type.

Each preset is a config.json in Hugging Face's words with its source and the published number of parameters;
it becomes a `ModelSpec` by the same `from_hf` that reads a downloaded configuration. The TOML files in
`presets/models/` are read when first asked for, and only the preset that is wanted is built.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec
from mansard.specs.names import normalize_name, resolve_name

REMEDY = "or give a config.json, a model directory or a GGUF file"

# What tuning, packing and repackaging add to a model's name without changing its shape.
_SUFFIX = re.compile(
    r"-(instruct|chat|it|hf|base|pt|thinking|bf16|fp8(-dynamic|-static)?|awq|gptq(-int[48])?|nvfp4|mxfp4|w[48]a(8|16)"
    r"|quantized\.w[48]a(8|16)|gguf|q\d_[\w]+|v0\.[12]|\d{4})$"
)


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """One model's facts.

    `parameters` is the published total, of which `other_parameters` the config does not describe (a
    vision tower).
    `active_parameters` are those that one token uses (mixtures of experts), as published.
    """

    name: str
    config: Mapping[str, object] = field(hash=False, repr=False)
    parameters: int
    hf_id: str
    source: str
    active_parameters: int | None = None
    other_parameters: int = 0
    aliases: tuple[str, ...] = ()
    notes: str = ""

    def spec(self) -> ModelSpec:
        """Return the model's architecture."""
        return from_hf(self.config, name=self.name)


@functools.cache
def presets() -> Mapping[str, ModelPreset]:
    """Return every preset by name, in the order of its files."""
    found: dict[str, ModelPreset] = {}
    folder = resources.files("mansard.specs") / "presets" / "models"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            found.update({name: _preset(name, entry) for name, entry in table.items()})
    return found


def _preset(name: str, entry: Mapping[str, Any]) -> ModelPreset:
    active = entry.get("active_parameters")
    return ModelPreset(
        name=name,
        config=entry["config"],
        parameters=int(entry["parameters"]),
        hf_id=entry["hf_id"],
        source=entry["source"],
        active_parameters=None if active is None else int(active),
        other_parameters=int(entry.get("other_parameters", 0)),
        aliases=tuple(entry.get("aliases", ())),
        notes=entry.get("notes", ""),
    )


def bare_name(name: str) -> str:
    """Return a model's name without its owner, and without what tuning and packing added to it.

    `meta-llama/Meta-Llama-3.1-8B-Instruct` and `llama-3.1-8b` are one shape.
    """
    text = normalize_name(name.rsplit("/", 1)[-1]).removeprefix("meta-")
    while (shorter := _SUFFIX.sub("", text)) != text:
        text = shorter
    return text


@functools.cache
def _index() -> Mapping[str, str]:
    index: dict[str, str] = {}
    for name, preset in presets().items():
        for alias in (*preset.aliases, preset.hf_id.rsplit("/", 1)[-1]):
            index.setdefault(bare_name(alias), name)
            index.setdefault(normalize_name(alias), name)
    return index | {normalize_name(name): name for name in presets()}


def find_preset(name: str) -> ModelPreset:
    """Return the preset that `name` means: its name, an alias or a Hugging Face id of the same shape.

    Raises: ValueError with the nearest names when there is none.
    """
    index = _index()
    last = normalize_name(name.rsplit("/", 1)[-1])
    known = last if last in index else bare_name(name)
    return presets()[resolve_name(known, index, "model", REMEDY)]


def preset(name: str) -> ModelSpec:
    """Return the architecture of the preset that `name` means.

    Raises: ValueError with the nearest names when there is none.
    """
    return find_preset(name).spec()
