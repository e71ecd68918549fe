"""The ggml block formats, decoded: what the bytes of a Q4_1 or Q6_K block mean as float32.

Each format is a packed NumPy record (its layout is the file's layout) and one function from an array of
records to [blocks, elements] float32, with the operations in ggml's order so that results are equal bit for
bit. Work is done a slice of blocks at a time, so temporaries stay small whatever the tensor's size.

Source: ggml-common.h and ggml-quants.c (layouts and formulas); OCP Microscaling v1.0, section 5 (e2m1, e8m0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mansard.loading.stored import Bytes, Floats, StoredTensor

Blocks = NDArray[Any]  # an array of packed block records
ELEMENTS_PER_SLICE = 1 << 17  # 512 KiB of float32: temporaries stay in the L2 cache

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)

LAYOUTS: dict[str, np.dtype[np.void]] = {
    "Q4_0": np.dtype([("d", "<f2"), ("qs", "u1", (16,))]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))]),
    "Q5_0": np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))]),
    "Q5_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))]),
    "Q8_0": np.dtype([("d", "<f2"), ("qs", "i1", (32,))]),
    "IQ4_NL": np.dtype([("d", "<f2"), ("qs", "u1", (16,))]),
    "mxfp4": np.dtype([("e", "u1"), ("qs", "u1", (16,))]),
    "Q2_K": np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")]),
    "Q3_K": np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")]),
    "Q4_K": np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (128,))]),
    "Q5_K": np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
    ),
    "Q6_K": np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")]),
}


def dequantize(tensor: StoredTensor) -> Floats:
    """Return the tensor's values.

    Shapes: float32 of `tensor.shape`, newly allocated. Raises: ValueError for a format that cannot be
    decoded.
    """
    return dequantize_bytes(tensor.data, tensor.format.name).reshape(tensor.shape)


def dequantize_bytes(data: Bytes, format_name: str) -> Floats:
    """Return the values of whole blocks of the format called `format_name`.

    Shapes: `data`: [n · block_bytes] uint8; result: [n · block_size] float32.
    """
    if format_name in _DENSE:
        return _DENSE[format_name](data)
    if format_name not in _DECODERS:
        known = ", ".join([*_DENSE, *_DECODERS])
        raise ValueError(f"cannot decode {format_name} weights; supported are {known}")
    blocks = np.ascontiguousarray(data).view(LAYOUTS[format_name])
    decode = _DECODERS[format_name]
    block_size = 256 if format_name.endswith("_K") else 32
    output = np.empty((len(blocks), block_size), np.float32)
    step = ELEMENTS_PER_SLICE // block_size
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            output[start : start + step] = decode(part).reshape(len(part), block_size)
    return output.reshape(-1)


def _fp32(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f4").astype(np.float32)


def _fp16(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _bf16(data: Bytes) -> Floats:
    bits = np.ascontiguousarray(data).view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _column(values: Blocks) -> Floats:
    """Return a per-block number as a float32 column [blocks, 1]."""
    return values.astype(np.float32)[:, None]


def _nibbles(qs: Bytes) -> Bytes:
    """Return low nibbles, then high nibbles, along the last axis: [..., n] → [..., 2n]."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _fifth_bits(qh: Bytes) -> Bytes:
    """Return the 32 high bits of Q5_0 and Q5_1 as 0 or 16: [blocks, 4] → [blocks, 32]."""
    return np.unpackbits(qh, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(b: Blocks) -> Floats:
    return _column(b["d"]) * (_nibbles(b["qs"]).astype(np.float32) - 8)


def _q4_1(b: Blocks) -> Floats:
    return _column(b["d"]) * _nibbles(b["qs"]).astype(np.float32) + _column(b["m"])


def _q5_0(b: Blocks) -> Floats:
    return _column(b["d"]) * ((_nibbles(b["qs"]) | _fifth_bits(b["qh"])).astype(np.float32) - 16)


def _q5_1(b: Blocks) -> Floats:
    return _column(b["d"]) * (_nibbles(b["qs"]) | _fifth_bits(b["qh"])).astype(np.float32) + _column(b["m"])


def _q8_0(b: Blocks) -> Floats:
    return _column(b["d"]) * b["qs"].astype(np.float32)


def _iq4_nl(b: Blocks) -> Floats:
    return _column(b["d"]) * IQ4_NL_VALUES[_nibbles(b["qs"])]


def e8m0_half(exponents: Bytes) -> Floats:
    """Return 2^(e - 128), the scale for doubled e2m1 values; the two smallest exponents are subnormal."""
    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x0020_0000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def _mxfp4(b: Blocks) -> Floats:
    return e8m0_half(b["e"])[:, None] * E2M1_DOUBLED[_nibbles(b["qs"])]


def _planes(qs: Bytes, group: int, bits: int) -> Bytes:
    """Split each `group` bytes into planes of `bits` bits, low first: [blocks, n] → [blocks, 8n / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes = (qs.reshape(len(qs), -1, 1, group) >> shifts) & np.uint8((1 << bits) - 1)
    return planes.reshape(len(qs), -1)


def _scaled(q: Blocks, scale: Floats, minimum: Floats | None = None) -> Floats:
    """Return scale · q (− minimum), each scale covering an equal run of the block's 256 elements."""
    runs = q.astype(np.float32).reshape(*scale.shape, -1)
    scaled: Floats = scale[:, :, None] * runs
    return scaled if minimum is None else scaled - minimum[:, :, None]


def _q2_k(b: Blocks) -> Floats:
    scale = _column(b["d"]) * (b["scales"] & 15).astype(np.float32)
    minimum = _column(b["dmin"]) * (b["scales"] >> 4).astype(np.float32)
    return _scaled(_planes(b["qs"], 32, 2), scale, minimum)


def _q3_k(b: Blocks) -> Floats:
    packed = b["scales"]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=-1)
    high = _planes(np.ascontiguousarray(packed[:, 8:]), 4, 2)
    scale = _column(b["d"]) * ((low | (high << 4)).astype(np.float32) - 32)
    missing = (1 - _planes(b["hmask"], 32, 1)) << 2  # a clear mask bit takes 4 away
    return _scaled(_planes(b["qs"], 32, 2).astype(np.int16) - missing.astype(np.int16), scale)


def _scales_and_minimums(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack the eight 6-bit scales and minimums of Q4_K and Q5_K: [blocks, 12] → two of [blocks, 8]."""
    low_scale, low_min, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([low_scale & 63, (high & 15) | ((low_scale >> 6) << 4)], axis=-1)
    minimum = np.concatenate([low_min & 63, (high >> 4) | ((low_min >> 6) << 4)], axis=-1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _q4_k(b: Blocks) -> Floats:
    scale, minimum = _scales_and_minimums(b["scales"])
    return _scaled(_planes(b["qs"], 32, 4), _column(b["d"]) * scale, _column(b["dmin"]) * minimum)


def _q5_k(b: Blocks) -> Floats:
    scale, minimum = _scales_and_minimums(b["scales"])
    q = _planes(b["qs"], 32, 4) | (_planes(b["qh"], 32, 1) << 4)
    return _scaled(q, _column(b["d"]) * scale, _column(b["dmin"]) * minimum)


def _q6_k(b: Blocks) -> Floats:
    q = _planes(b["ql"], 64, 4) | (_planes(b["qh"], 32, 2) << 4)
    return _scaled(q.astype(np.float32) - 32, _column(b["d"]) * b["scales"].astype(np.float32))


_DENSE: dict[str, Callable[[Bytes], Floats]] = {"fp32": _fp32, "fp16": _fp16, "bf16": _bf16}
_DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "mxfp4": _mxfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
