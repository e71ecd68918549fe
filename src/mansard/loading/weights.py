"""Weights: a model file's tensors under canonical names, in canonical order, still in their stored format.

One class stands between what files hold (GGUF, safetensors) and what the engine wants, so that a program, an
executor and a quantizer need not know where weights came from. Opening reads headers alone; bytes move when a
tensor is asked for, and are views on the file wherever its order is already right.

GGUF files of Gemma hold norm weights with the 1 of (1 + weight) already added; such a file's ModelSpec
therefore has `norm_unit_offset=False`, and nothing is subtracted here.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path

from mansard.loading.expert_recipes import fused_experts, stacked
from mansard.loading.ggml_blocks import dequantize
from mansard.loading.gguf import GgufFile
from mansard.loading.names import (
    GGUF_ARCHITECTURES,
    PERMUTED_ARCHITECTURES,
    ROPE_TENSORS,
    canonical_gguf,
    canonical_hf,
)
from mansard.loading.recipes import Recipe, as_stored, unpermuted
from mansard.loading.safetensors import SafetensorsModel
from mansard.loading.stored import Floats, MappedFile, ModelFileError, StoredTensor
from mansard.specs.precision import NumberFormat, number_formats

_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
_FUSED = re.compile(r"(.+\.mlp\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks|_scales)?")
_PREQUANTIZED = re.compile(r".+\.(qweight|qzeros|scales|g_idx|weight_scale|weight_scale_inv|weight_packed|absmax)")
_QK = re.compile(r".+\.self_attn\.([qk])_proj\.(weight|bias)")


class Weights:
    """The weights of one model.

    `unmapped` lists tensors that have no canonical name (a vision tower, buffers); `rope_tensors` holds a
    GGUF's per-dimension rotation factors, which belong to the ModelSpec; `gguf` is the file when there is
    one.
    """

    def __init__(self, path: Path, recipes: Mapping[str, Recipe], files: tuple[MappedFile, ...]) -> None:
        self.path = path
        self._recipes = dict(recipes)
        self._files = files
        self.unmapped: tuple[str, ...] = ()
        self.rope_tensors: Mapping[str, StoredTensor] = {}
        self.gguf: GgufFile | None = None

    @staticmethod
    def open(path: str | Path) -> Weights:
        """Open a `.gguf` file, a `.safetensors` file or a folder of safetensors.

        Raises: ModelFileError for a damaged file, an unsupported architecture or format, or a file of no
        tensors.
        """
        source = Path(path)
        if source.is_file() and source.suffix != ".safetensors":
            return weights_of_gguf(GgufFile.open(source))
        if not source.exists():
            raise ModelFileError(source, "path", str(source), "there is no such file or folder")
        return weights_of_safetensors(SafetensorsModel.open(source))

    def names(self) -> tuple[str, ...]:
        """Return the canonical names in the file's order."""
        return tuple(self._recipes)

    def __contains__(self, name: object) -> bool:
        return name in self._recipes

    def __len__(self) -> int:
        return len(self._recipes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a weight's shape without reading it."""
        return self._recipe(name).shape

    def format(self, name: str) -> NumberFormat:
        """Return a weight's stored format without reading it."""
        return self._recipe(name).format

    def tensor(self, name: str) -> StoredTensor:
        """Return a weight in its stored format, rows in canonical order.

        Raises: ModelFileError when the file does not hold it.
        """
        recipe = self._recipe(name)
        return StoredTensor(name, recipe.format, recipe.shape, recipe.build())

    def float32(self, name: str) -> Floats:
        """Return a weight's values as a new float32 array of its shape."""
        return dequantize(self.tensor(name))

    def release(self, name: str) -> None:
        """Let the system drop the file pages behind a weight once it has been copied elsewhere."""
        for source in self._recipe(name).sources:
            for file in self._files:
                file.release(source.data)

    @property
    def num_parameters(self) -> int:
        """Return how many numbers all canonical weights hold together."""
        return sum(math.prod(r.shape) for r in self._recipes.values())

    @property
    def num_bytes(self) -> int:
        """Return how many bytes all canonical weights take as stored."""
        return sum(r.format.num_bytes(math.prod(r.shape)) for r in self._recipes.values())

    def _recipe(self, name: str) -> Recipe:
        if name not in self._recipes:
            near = difflib.get_close_matches(name, self._recipes, n=3)
            raise ModelFileError(self.path, "weight", name, f"the file does not hold it; nearest: {near}")
        return self._recipes[name]


def resolve_head(weights: Weights, tie: bool) -> str:
    """Return the name of the output matrix: the head when the file has one, else the embeddings when tied.

    Raises: ModelFileError when there is no head and the configuration says that it is not tied.
    """
    if "lm_head.weight" in weights:
        return "lm_head.weight"
    if tie and "model.embed_tokens.weight" in weights:
        return "model.embed_tokens.weight"
    limit = "the file holds no such tensor and tie_word_embeddings is false; the checkpoint is incomplete"
    raise ModelFileError(weights.path, "lm_head.weight", None, limit)


def weights_of_gguf(file: GgufFile) -> Weights:
    """Map the tensors of an opened GGUF file.

    Raises: ModelFileError for an architecture or a split file that is not supported.
    """
    architecture = file.architecture
    if architecture not in GGUF_ARCHITECTURES:
        limit = f"supported are {', '.join(GGUF_ARCHITECTURES)}"
        raise ModelFileError(file.path, "general.architecture", architecture, limit)
    if file.metadata.get("split.count", 0) not in (0, 1):
        limit = "split files are not supported; merge them first (llama-gguf-split --merge)"
        raise ModelFileError(file.path, "split.count", file.metadata["split.count"], limit)
    named, unmapped = _canonical(file.path, {n: canonical_gguf(n, architecture) for n in file.tensors}, file.tensors)
    recipes = _recipes(file.path, named)
    if architecture in PERMUTED_ARCHITECTURES:
        recipes |= _unpermuted(file, named)
    weights = Weights(file.path, recipes, (file.mapped,))
    weights.unmapped = tuple(n for n in unmapped if n not in ROPE_TENSORS)
    weights.rope_tensors = {n: file.tensors[n] for n in unmapped if n in ROPE_TENSORS}
    weights.gguf = file
    return weights


def weights_of_safetensors(model: SafetensorsModel) -> Weights:
    """Map the tensors of an opened safetensors model.

    Raises: ModelFileError for number formats or pre-quantized checkpoints that are not supported.
    """
    named, unmapped = _canonical(model.path, {n: canonical_hf(n) for n in model.tensors}, model.tensors)
    for name in named:
        if _PREQUANTIZED.fullmatch(name):
            limit = "GPTQ, AWQ, fp8 and bitsandbytes checkpoints are not supported; use the original or a GGUF"
            raise ModelFileError(model.path, "tensor", name, limit)
    weights = Weights(model.path, _recipes(model.path, named), tuple(f.mapped for f in model.files))
    weights.unmapped = tuple(unmapped)
    return weights


def _canonical(
    path: Path, names: Mapping[str, str | None], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Give tensors their canonical names; return those and the names that have none."""
    named: dict[str, StoredTensor] = {}
    for name, canonical in names.items():
        if canonical is None:
            continue
        if canonical in named:
            limit = f"it and {named[canonical].name!r} are both {canonical}"
            raise ModelFileError(path, "tensor", name, limit)
        named[canonical] = tensors[name]
    if not named:
        raise ModelFileError(path, "tensors", sorted(tensors)[:3], "the file holds no weights of a known model")
    return named, [n for n, canonical in names.items() if canonical is None]


def _recipes(path: Path, named: Mapping[str, StoredTensor]) -> dict[str, Recipe]:
    """Turn canonically named tensors into recipes; experts kept apart or fused become stacked ones."""
    experts: dict[str, dict[int, StoredTensor]] = {}
    fused: dict[str, dict[str, StoredTensor]] = {}
    recipes: dict[str, Recipe] = {}
    for name, tensor in named.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(f"{match[1]}.{match[3]}.{match[4]}", {})[int(match[2])] = tensor
        elif match := _FUSED.fullmatch(name):
            fused.setdefault(match[1], {})[match[2] + (match[3] or "")] = tensor
        elif name.endswith(".shared_expert_gate.weight") and len(tensor.shape) == 1:
            recipes[name] = as_stored(tensor, (1, *tensor.shape))
        else:
            recipes[name] = as_stored(tensor)
    try:
        for name, parts in experts.items():
            if sorted(parts) != list(range(len(parts))):
                raise ValueError(f"{name} has experts {sorted(parts)}; they must be 0 to {len(parts) - 1}")
            recipes[name] = stacked([parts[i] for i in range(len(parts))])
        for prefix, parts_by_name in fused.items():
            recipes |= fused_experts(prefix, parts_by_name)
    except ValueError as error:
        raise ModelFileError(path, "expert weights", "of an unknown layout", str(error)) from None
    _refuse_unreadable(path, recipes)
    return recipes


def _refuse_unreadable(path: Path, recipes: Mapping[str, Recipe]) -> None:
    readable = {f.name for f in number_formats()}
    for name, recipe in recipes.items():
        if recipe.format.name not in readable:
            limit = "weights must be F32, F16 or BF16; use the original checkpoint or a GGUF"
            raise ModelFileError(path, f"dtype of {name}", recipe.format.name, limit)
        if 0 in recipe.shape:
            raise ModelFileError(path, f"shape of {name}", recipe.shape, "a weight has at least one element")


def _unpermuted(file: GgufFile, named: Mapping[str, StoredTensor]) -> dict[str, Recipe]:
    """Put q and k rows of a `llama` GGUF back into Hugging Face's order; k has its own number of heads."""
    field = f"{file.architecture}.attention.head_count"
    num_heads = file.metadata.get(field)
    num_kv_heads = file.metadata.get(field + "_kv", num_heads)
    if type(num_heads) is not int or type(num_kv_heads) is not int:
        raise ModelFileError(file.path, field, [num_heads, num_kv_heads], "one number for all layers is needed")
    recipes: dict[str, Recipe] = {}
    for name, tensor in named.items():
        if match := _QK.fullmatch(name):
            try:
                recipes[name] = unpermuted(tensor, num_heads if match[1] == "q" else num_kv_heads)
            except ValueError as error:
                raise ModelFileError(file.path, field, [num_heads, num_kv_heads], str(error)) from None
    return recipes
