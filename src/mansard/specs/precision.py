"""Number formats: how many bytes a weight or a cached key takes, exactly.

A format stores its elements in blocks that carry their own scales, so its size is a pair of whole numbers
(elements a block, bytes a block) and never "bits over eight". The loader reads files by this table,
the planner prices by it.

Sources: GGUF/ggml block layouts (ggml-common.h); OCP Microscaling v1.0 (mxfp4); NVIDIA NVFP4 (16 elements,
one e4m3 scale); QLoRA, arXiv 2305.14314, section 3 (nf4, double quantization).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """One way to store numbers: `block_size` elements in `block_bytes` bytes, scales included.

    `bits` is the width of one element's own code; `bits_per_weight` spreads the scales over the elements.
    """

    name: str
    bits: int
    block_size: int
    block_bytes: int

    def num_bytes(self, num_elements: int) -> int:
        """Return the bytes of `num_elements` elements; an incomplete last block takes a whole one.

        Units: bytes. Raises: ValueError when `num_elements` is negative.
        """
        if num_elements < 0:
            raise ValueError(f"a tensor cannot have {num_elements} elements; give a count of 0 or more")
        return -(-num_elements // self.block_size) * self.block_bytes

    @property
    def bits_per_weight(self) -> float:
        """Return the bits an element takes with its share of the block's scales."""
        return 8 * self.block_bytes / self.block_size

    @property
    def is_quantized(self) -> bool:
        """Say whether elements share a scale (so that a row can only be read block by block)."""
        return self.block_size > 1 and 8 * self.block_bytes != self.bits * self.block_size


def grouped(
    bits: int, group_size: int, scale_bytes: int = 2, zero_bytes: float = 0.0, name: str | None = None
) -> NumberFormat:
    """Return an integer format of `bits` with one scale (and maybe a zero point) a group.

    `zero_bytes` may be 0.5: zero points of 4 bits, as GPTQ and AWQ pack them; the block is then two groups.
    Units: bytes a group. Raises: ValueError when a group does not fill whole bytes.
    """
    if not 1 <= bits <= 8 or group_size < 1 or scale_bytes < 0 or zero_bytes < 0:
        raise ValueError(
            f"a grouped format needs 1..8 bits, a group of 1 or more, sizes of 0 or more; got bits={bits}, "
            f"group_size={group_size}, scale_bytes={scale_bytes}, zero_bytes={zero_bytes}"
        )
    groups = 1 if float(zero_bytes).is_integer() else 2
    payload_bits, rest = bits * group_size * groups, groups * zero_bytes
    if payload_bits % 8 or not float(rest).is_integer():
        raise ValueError(
            f"{group_size} elements of {bits} bits and {zero_bytes} bytes of zero do not fill whole bytes; "
            "choose a group size that is a multiple of 8 and zero_bytes a multiple of 0.5"
        )
    block_bytes = payload_bits // 8 + groups * scale_bytes + int(rest)
    label = name or f"int{bits}-g{group_size}" + ("-zp" if zero_bytes else "")
    return NumberFormat(label, bits, group_size * groups, block_bytes)


FP32 = NumberFormat("fp32", 32, 1, 4)
FP16 = NumberFormat("fp16", 16, 1, 2)
BF16 = NumberFormat("bf16", 16, 1, 2)

_TABLE: tuple[NumberFormat, ...] = (
    FP32,
    FP16,
    BF16,
    NumberFormat("fp8", 8, 1, 1),  # e4m3; a scale per tensor or channel is not counted
    NumberFormat("int8", 8, 1, 1),  # a scale per output channel is not counted
    grouped(4, 128, name="int4"),  # one fp16 scale per 128, symmetric: w4a16
    NumberFormat("fp6", 6, 4, 3),
    NumberFormat("fp4", 4, 2, 1),
    NumberFormat("nvfp4", 4, 16, 9),  # one e4m3 scale per 16; the fp32 scale per tensor is not counted
    NumberFormat("mxfp4", 4, 32, 17),  # one e8m0 scale per 32
    NumberFormat("nf4", 4, 64, 36),  # one fp32 absmax per 64
    NumberFormat("nf4-dq", 4, 16_384, 8_452),  # absmax in 8 bits, one fp32 per 256 of them
    NumberFormat("int2", 2, 4, 1),
    NumberFormat("Q4_0", 4, 32, 18),
    NumberFormat("Q4_1", 4, 32, 20),
    NumberFormat("Q5_0", 5, 32, 22),
    NumberFormat("Q5_1", 5, 32, 24),
    NumberFormat("Q8_0", 8, 32, 34),
    NumberFormat("Q2_K", 2, 256, 84),
    NumberFormat("Q3_K", 3, 256, 110),
    NumberFormat("Q4_K", 4, 256, 144),
    NumberFormat("Q5_K", 5, 256, 176),
    NumberFormat("Q6_K", 6, 256, 210),
    NumberFormat("IQ4_NL", 4, 32, 18),
)
_FORMATS = {f.name.lower(): f for f in _TABLE}
_ALIASES = {
    "f32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "f16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "f8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
    "w8a8": "int8",
    "w4a16": "int4",
    "bnb-nf4": "nf4",
}
_GROUPED = re.compile(r"int([2-8])-g(\d{1,5})(-zp)?")


def number_format(name: str) -> NumberFormat:
    """Return the format called `name`: `bf16`, `Q4_K`, `int4-g64`, `int4-g128-zp`, or an alias (`float16`).

    Case does not matter. Raises: ValueError for an unknown name, listing the nearest ones.
    """
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key in _FORMATS:
        return _FORMATS[key]
    if match := _GROUPED.fullmatch(key):
        bits, group_size = int(match[1]), int(match[2])
        zero_bytes = 0.0 if not match[3] else 0.5 if bits == 4 else 1.0
        return grouped(bits, group_size, zero_bytes=zero_bytes)
    known = [*_FORMATS, *_ALIASES]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5) or list(_FORMATS)
    nearest = ", ".join(_FORMATS[n].name if n in _FORMATS else n for n in near)
    raise ValueError(f"unknown number format {name!r}; nearest: {nearest} (groups: int4-g64, int8-g128)")


def number_formats() -> tuple[NumberFormat, ...]:
    """Return every format of the table, in its order."""
    return _TABLE


KV_CACHE_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "int2", "Q8_0")


def kv_cache_format(name: str, head_dim: int, scale_bytes: int = 4) -> NumberFormat:
    """Return how one head of one cached token is stored: integer formats keep one scale per token and head.

    int8 is symmetric: one scale. int4 and int2 keep a minimum of the same width beside it. Q8_0 keeps one
    fp16 scale per 32 values, whatever `scale_bytes` says.
    Units: `scale_bytes` bytes. Raises: ValueError for no KV-cache format or a head it cannot hold.
    """
    fmt = number_format(name)
    if fmt.name not in KV_CACHE_FORMATS:
        raise ValueError(f"{name!r} is no KV-cache format; choose one of {', '.join(KV_CACHE_FORMATS)}")
    if head_dim < 1 or (fmt.bits * head_dim) % 8 or (fmt.name == "Q8_0" and head_dim % 32):
        raise ValueError(f"a head of {head_dim} values cannot be stored as {fmt.name}; use bf16")
    if not fmt.name.startswith("int"):
        return fmt
    scales = scale_bytes if fmt.bits == 8 else 2 * scale_bytes
    return NumberFormat(f"{fmt.name}-head", fmt.bits, head_dim, fmt.bits * head_dim // 8 + scales)
