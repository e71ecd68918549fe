"""Model files for the loading tests: hand-packed GGUF and safetensors bytes, sound or deliberately not."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor_info(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_bytes(
    entries: list[bytes] = (),  # type: ignore[assignment]
    infos: list[bytes] = (),  # type: ignore[assignment]
    data: bytes = b"",
    num_tensors: int | None = None,
    num_keys: int | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    num_tensors = len(infos) if num_tensors is None else num_tensors
    num_keys = len(entries) if num_keys is None else num_keys
    head = struct.pack("<4sIQQ", magic, version, num_tensors, num_keys) + b"".join([*entries, *infos])
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + data


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def random_floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """Damage a header once: half of the time near its front, where counts and types are."""
    data = bytearray(raw)
    at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(4096)
    kind = rng.randrange(5)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 16))
    elif kind == 3:
        del data[at : at + rng.randrange(1, 16)]
    else:
        extreme = rng.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63, 2**64 - 1])
        data[at : at + 8] = struct.pack("<Q", extreme)
    return bytes(data)


def mutate_small(raw: bytes, rng: random.Random) -> bytes:
    padded = mutate(raw.ljust(4097, b"\0"), rng)
    return padded[: max(1, len(padded) - 4097 + len(raw))]
