"""A minimal GGUF v3 writer: metadata and stored tensors in, one file out.

It exists for tests, benchmarks and quantized checkpoints; `gguf.py` reads what it writes.

Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mansard.loading.gguf import TENSOR_FORMATS
from mansard.loading.stored import StoredTensor

_TYPE_OF = {f.name: kind for kind, f in TENSOR_FORMATS.items()}


def write_gguf(
    path: str | Path, metadata: Mapping[str, Any], tensors: Iterable[StoredTensor], alignment: int = 32
) -> Path:
    """Write a GGUF file and return its path.

    Python ints become uint32 when they fit, else int32 or 64 bits; floats float32; lists arrays of their
    items. Raises: ValueError for a value or a tensor format that GGUF cannot hold.
    """
    target, stored = Path(path), list(tensors)
    entries = {**metadata} if alignment == 32 else {**metadata, "general.alignment": alignment}
    header = [struct.pack("<4sIQQ", b"GGUF", 3, len(stored), len(entries))]
    for key, value in entries.items():
        kind, payload = _encode(value, key)
        header.append(_string(key) + struct.pack("<I", kind) + payload)
    offset = 0
    for tensor in stored:
        header.append(_info(tensor, offset))
        offset += _padded(tensor.num_bytes, alignment)
    head = b"".join(header)
    with target.open("wb") as file:
        file.write(head.ljust(_padded(len(head), alignment), b"\0"))
        for tensor in stored:
            tensor.data.tofile(file)
            file.write(b"\0" * (_padded(tensor.num_bytes, alignment) - tensor.num_bytes))
    return target


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _info(tensor: StoredTensor, offset: int) -> bytes:
    if tensor.format.name not in _TYPE_OF:
        raise ValueError(f"GGUF cannot hold {tensor.format.name} ({tensor.name}); use {', '.join(_TYPE_OF)}")
    dims = tensor.shape[::-1]
    kind = _TYPE_OF[tensor.format.name]
    return _string(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def _encode(value: Any, key: str) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    if isinstance(value, list | tuple) and value:
        return 9, _array(list(value), key)
    raise ValueError(f"GGUF metadata {key!r} cannot be {value!r}; use bool, int, float, str or a non-empty list")


def _encode_int(value: int) -> tuple[int, bytes]:
    for kind, code, low, high in (
        (4, "<I", 0, 1 << 32),
        (5, "<i", -(1 << 31), 0),
        (10, "<Q", 0, 1 << 64),
        (11, "<q", -(1 << 63), 0),
    ):
        if low <= value < high:
            return kind, struct.pack(code, value)
    raise ValueError(f"GGUF integers have at most 64 bits, got {value}")


def _array(values: list[Any], key: str) -> bytes:
    if all(type(v) is int for v in values) and min(values) < 0:
        return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
    encoded = [_encode(v, key) for v in values]
    kinds = {kind for kind, _ in encoded}
    if len(kinds) != 1:
        raise ValueError(f"GGUF metadata {key!r} must have items of one type, got GGUF types {sorted(kinds)}")
    return struct.pack("<IQ", kinds.pop(), len(values)) + b"".join(payload for _, payload in encoded)
