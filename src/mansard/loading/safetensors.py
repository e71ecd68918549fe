"""A strict, memory-mapped reader of safetensors: single files and sharded folders.

A header is JSON from a stranger: its length is capped, each key may occur once, and the tensors' ranges must
tile the data exactly, so that nothing hides between them and nothing reads past the end. Tensors are views on
the map.

Source: the safetensors format (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mansard.loading.stored import MappedFile, ModelFileError, StoredTensor
from mansard.specs.precision import BF16, FP16, FP32, NumberFormat

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_DTYPES: dict[str, NumberFormat] = {"F32": FP32, "F16": FP16, "BF16": BF16} | {
    name: NumberFormat(name, bits, 1, bits // 8)
    for name, bits in {
        "BOOL": 8,
        "U8": 8,
        "I8": 8,
        "F8_E4M3": 8,
        "F8_E5M2": 8,
        "F8_E8M0": 8,
        "I16": 16,
        "U16": 16,
        "I32": 32,
        "U32": 32,
        "I64": 64,
        "U64": 64,
        "F64": 64,
    }.items()
}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One opened safetensors file: its `__metadata__` and its tensors as stored."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    mapped: MappedFile

    @staticmethod
    def open(path: str | Path) -> SafetensorsFile:
        """Read the header of the file at `path` and map its tensors.

        Raises: ModelFileError for any defect, naming the tensor and the field.
        """
        mapped = MappedFile(path)
        header, data_start = _read_header(mapped)
        metadata = _metadata(mapped, header.pop("__metadata__", {}))
        data_bytes = mapped.size - data_start
        tensors: dict[str, StoredTensor] = {}
        end = 0
        for begin, stop, name, number, shape in sorted(_entries(mapped, header, data_bytes)):
            if begin != end:
                limit = f"tensors must tile the data exactly; the one before ends at {end}"
                raise ModelFileError(path, f"data_offsets of {name!r}", [begin, stop], limit)
            end = stop
            view = mapped.view(data_start + begin, stop - begin)
            tensors[name] = StoredTensor(name, _DTYPES[number], shape, view)
        if end != data_bytes:
            raise ModelFileError(path, "end of the last tensor", end, f"the file holds {data_bytes} bytes of data")
        return SafetensorsFile(mapped.path, metadata, tensors, mapped)


def _read_header(mapped: MappedFile) -> tuple[dict[str, Any], int]:
    if mapped.size < 8:
        raise ModelFileError(mapped.path, "file size", mapped.size, "a safetensors file has at least 8 bytes")
    length = int.from_bytes(mapped.map[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(mapped.path, "header length", length, f"at most {MAX_HEADER_BYTES} bytes are allowed")
    if length > mapped.size - 8:
        limit = f"only {mapped.size - 8} bytes follow; the file is truncated"
        raise ModelFileError(mapped.path, "header length", length, limit)
    return parse_json_object(mapped.path, "header", mapped.map[8 : 8 + length]), 8 + length


def parse_json_object(path: Path, field: str, raw: bytes) -> dict[str, Any]:
    """Parse a JSON object in which no key occurs twice.

    Raises: ModelFileError for anything else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ModelFileError(path, f"{field} key", key, "each key may occur once")
            found[key] = value
        return found

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, field, str(error)[:80], "it must be JSON in UTF-8") from None
    if not isinstance(parsed, dict):
        raise ModelFileError(path, field, type(parsed).__name__, "it must be a JSON object")
    return parsed


def _metadata(mapped: MappedFile, value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ModelFileError(mapped.path, "__metadata__", value, "it must map strings to strings")
    return value


Entry = tuple[int, int, str, str, tuple[int, ...]]  # begin, end, name, dtype, shape


def _entries(mapped: MappedFile, header: Mapping[str, Any], data_bytes: int) -> Iterator[Entry]:
    for name, info in header.items():
        if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
            limit = "it must have exactly dtype, shape and data_offsets"
            raise ModelFileError(mapped.path, f"entry of {name!r}", info, limit)
        dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ModelFileError(mapped.path, f"dtype of {name!r}", dtype, f"known are {', '.join(_DTYPES)}")
        if not _is_counts(shape) or len(shape) > MAX_DIMS:
            limit = f"it must be a list of at most {MAX_DIMS} integers of 0 or more"
            raise ModelFileError(mapped.path, f"shape of {name!r}", shape, limit)
        if not _is_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
            limit = f"it must be [begin, end] with 0 ≤ begin ≤ end ≤ {data_bytes}"
            raise ModelFileError(mapped.path, f"data_offsets of {name!r}", offsets, limit)
        needed = math.prod(shape) * _DTYPES[dtype].block_bytes
        if needed != offsets[1] - offsets[0]:
            limit = f"{dtype} of shape {shape} takes {needed} bytes"
            raise ModelFileError(mapped.path, f"data_offsets of {name!r}", offsets, limit)
        yield offsets[0], offsets[1], name, dtype, tuple(shape)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


@dataclass(frozen=True, slots=True)
class SafetensorsModel:
    """The tensors of a model kept in one or several safetensors files."""

    path: Path
    files: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, StoredTensor]

    @staticmethod
    def open(path: str | Path) -> SafetensorsModel:
        """Open a `.safetensors` file or a folder of shards.

        Raises: ModelFileError for a defect of any file or of the index, or a folder without safetensors.
        """
        root = Path(path)
        files = tuple(SafetensorsFile.open(p) for p in safetensors_paths(root))
        tensors: dict[str, StoredTensor] = {}
        for file in files:
            for name, tensor in file.tensors.items():
                if name in tensors:
                    raise ModelFileError(file.path, "tensor", name, "another shard holds it too")
                tensors[name] = tensor
        index = root / INDEX_NAME
        if root.is_dir() and len(files) > 0 and files[0].path.name != SINGLE_NAME and index.is_file():
            _check_index(index, files)
        return SafetensorsModel(root, files, tensors)


def safetensors_paths(root: Path) -> tuple[Path, ...]:
    """Return the safetensors files that make up the model at `root`, in name order.

    Raises: ModelFileError when there are none, or the index is damaged, names a missing file or leaves the
    folder.
    """
    if not root.is_dir():
        return (root,)
    if (root / SINGLE_NAME).is_file():
        return (root / SINGLE_NAME,)
    if (root / INDEX_NAME).is_file():
        return tuple(root / name for name in sorted(set(_weight_map(root / INDEX_NAME).values())))
    found = tuple(sorted(root.glob("*.safetensors")))
    if not found:
        raise ModelFileError(root, "folder", str(root), "it holds no .safetensors file")
    return found


def _weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > MAX_HEADER_BYTES:
        limit = f"at most {MAX_HEADER_BYTES} bytes are allowed"
        raise ModelFileError(index, "index size", index.stat().st_size, limit)
    mapping = parse_json_object(index, "index", index.read_bytes()).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelFileError(index, "weight_map", mapping, "it must map tensor names to file names")
    for name, file in mapping.items():
        parts = PurePosixPath(file).parts if isinstance(file, str) else ()
        inside = parts and ".." not in parts and not file.startswith("/") and not set(file) & set("\\\0:")
        if not inside:
            raise ModelFileError(index, f"weight_map of {name!r}", file, "it must be a file inside the folder")
        if not (index.parent / file).is_file():
            raise ModelFileError(index, f"weight_map of {name!r}", file, "there is no such shard; download it again")
    return mapping


def _check_index(index: Path, files: tuple[SafetensorsFile, ...]) -> None:
    held = {file.path: file.tensors for file in files}
    for name, shard in _weight_map(index).items():
        if name not in held[index.parent / shard]:
            raise ModelFileError(index, f"weight_map of {name!r}", shard, "that shard does not hold the tensor")
