"""float32 encoded into ggml blocks: the inverse of `ggml_blocks`, by round-to-nearest.

Used to write test files, benchmark inputs and quantized checkpoints. The simple formats follow ggml's
reference quantizers value for value; K-quants are searched encodings and have no place here.

Source: ggml-quants.c (reference row quantizers); OCP Microscaling v1.0, section 6.3 (the shared exponent).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mansard.loading.ggml_blocks import E2M1_DOUBLED, IQ4_NL_VALUES, LAYOUTS, Blocks, e8m0_half
from mansard.loading.stored import Bytes, Floats, StoredTensor
from mansard.specs.precision import NumberFormat, number_format


def quantize(array: Floats, target: NumberFormat | str, name: str = "") -> StoredTensor:
    """Return `array` stored in the format `target`.

    Shapes: `array` [..., n] with n a multiple of the format's block. Raises: ValueError for a format without
    an encoder or rows that are not whole blocks.
    """
    fmt = number_format(target) if isinstance(target, str) else target
    values = np.ascontiguousarray(array, dtype=np.float32)
    if fmt.name in _DENSE:
        return StoredTensor(name, fmt, values.shape, _DENSE[fmt.name](values.reshape(-1)))
    if fmt.name not in _ENCODERS:
        known = ", ".join([*_DENSE, *_ENCODERS])
        raise ValueError(f"cannot encode {fmt.name}; supported are {known}")
    if not values.ndim or values.shape[-1] % fmt.block_size:
        raise ValueError(f"rows of {values.shape[-1:]} do not fill {fmt.name}'s blocks of {fmt.block_size}")
    blocks = values.reshape(-1, fmt.block_size)
    with np.errstate(over="ignore", invalid="ignore"):
        records = _ENCODERS[fmt.name](blocks)
    return StoredTensor(name, fmt, values.shape, records.view(np.uint8).reshape(-1))


def _bf16(values: Floats) -> Bytes:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    is_nan = (bits & 0x7FFF_FFFF) > 0x7F80_0000
    return np.where(is_nan, (bits >> 16) | 64, rounded).astype("<u2").view(np.uint8)


def _fp16(values: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return values.astype("<f2").view(np.uint8)


def _inverse(scale: Floats) -> Floats:
    """Return 1 / scale, or 0 where the scale is 0 (a block of zeros)."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _pack(q: Bytes) -> Bytes:
    """Pack 32 nibbles: element i in the low half of byte i, element i + 16 in the high half."""
    return q[:, :16] | (q[:, 16:] << np.uint8(4))


def _signed_scale(blocks: Floats, levels: int) -> Floats:
    """Return the scale that maps the element of greatest magnitude, sign included, to -levels."""
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(blocks, at, axis=-1) / np.float32(-levels)


def _symmetric(blocks: Floats, levels: int) -> tuple[Floats, Bytes]:
    d = _signed_scale(blocks, levels)
    q = np.trunc(blocks * _inverse(d) + np.float32(levels + 0.5))
    return d, np.clip(q, 0, 2 * levels - 1).astype(np.uint8)


def _affine(blocks: Floats, levels: int) -> tuple[Floats, Floats, Bytes]:
    low = blocks.min(axis=-1, keepdims=True)
    d = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(levels)
    q = np.trunc((blocks - low) * _inverse(d) + np.float32(0.5))
    return d, low, np.clip(q, 0, levels).astype(np.uint8)


def _fifth_bits(q: Bytes) -> Bytes:
    return np.packbits(q >> 4, axis=-1, bitorder="little")


def _q4_0(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["Q4_0"])
    d, q = _symmetric(blocks, 8)
    out["d"], out["qs"] = d[:, 0], _pack(q)
    return out


def _q4_1(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["Q4_1"])
    d, low, q = _affine(blocks, 15)
    out["d"], out["m"], out["qs"] = d[:, 0], low[:, 0], _pack(q)
    return out


def _q5_0(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["Q5_0"])
    d, q = _symmetric(blocks, 16)
    out["d"], out["qs"], out["qh"] = d[:, 0], _pack(q & np.uint8(15)), _fifth_bits(q)
    return out


def _q5_1(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["Q5_1"])
    d, low, q = _affine(blocks, 31)
    out["d"], out["m"], out["qs"], out["qh"] = d[:, 0], low[:, 0], _pack(q & np.uint8(15)), _fifth_bits(q)
    return out


def _q8_0(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["Q8_0"])
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(d)
    magnitude = np.abs(scaled)
    rounded = np.floor(magnitude) + np.floor(2 * (magnitude - np.floor(magnitude)))  # halves away from zero
    out["d"], out["qs"] = d[:, 0], np.sign(scaled) * rounded
    return out


def _nearest(values: Floats, codebook: Floats) -> Bytes:
    """Return the index of the nearest codebook entry; among equals the first."""
    order = np.argsort(codebook, kind="stable")
    middles = (codebook[order][1:] + codebook[order][:-1]) / 2
    return order[np.searchsorted(middles, values, side="left")].astype(np.uint8)


def _iq4_nl(blocks: Floats) -> Blocks:
    """Encode with the scale that maps the greatest magnitude to -127, refined once by least squares."""
    out = np.empty(len(blocks), LAYOUTS["IQ4_NL"])
    d = _signed_scale(blocks, 127)
    chosen = IQ4_NL_VALUES[_nearest(blocks * _inverse(d), IQ4_NL_VALUES)]
    norm = (chosen * chosen).sum(axis=-1, keepdims=True)
    d = (chosen * blocks).sum(axis=-1, keepdims=True) * _inverse(norm) * (d != 0)
    out["d"] = d[:, 0]
    stored = out["d"].astype(np.float32)[:, None]
    out["qs"] = _pack(_nearest(blocks * _inverse(stored), IQ4_NL_VALUES))
    return out


def _mxfp4(blocks: Floats) -> Blocks:
    out = np.empty(len(blocks), LAYOUTS["mxfp4"])
    _, exponent = np.frexp(np.abs(blocks).max(axis=-1))  # |x| = m · 2^e with 1/2 ≤ m < 1; frexp(0) has e = 0
    is_zero = ~np.any(blocks, axis=-1)
    out["e"] = np.where(is_zero, 0, np.clip(exponent - 1 - 2 + 127, 0, 254))
    scaled = blocks / e8m0_half(out["e"])[:, None]
    magnitude = _nearest(np.abs(scaled), E2M1_DOUBLED[:8])
    out["qs"] = _pack(np.where((scaled < 0) & (magnitude > 0), magnitude | 8, magnitude).astype(np.uint8))
    return out


_DENSE: dict[str, Callable[[Floats], Bytes]] = {
    "fp32": lambda values: values.astype("<f4").view(np.uint8),
    "fp16": _fp16,
    "bf16": _bf16,
}
_ENCODERS: dict[str, Callable[[Floats], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "mxfp4": _mxfp4,
}
