"""Rotary frequencies: the numbers a RopeSpec stands for.

An executor rotates position p by the angle p · inverse_frequency[i] in plane i and multiplies cosine and
sine by the attention factor. All kinds of stretching beyond the trained context come down to another list
of frequencies.

longrope has two lists, for contexts within and beyond the trained length. A running sequence cannot change
from one to the other, for the keys in its cache are rotated already; so the choice is made once for a
deployment, by the longest sequence it admits.

Source: RoFormer (arXiv 2104.09864); position interpolation (arXiv 2306.15595); YaRN (arXiv 2309.00071)
equations 17 to 23; LongRoPE (arXiv 2402.13753); llama3: the Llama 3.1 model card's reference code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from mansard.specs.model import ModelSpec, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int, max_position_embeddings: int) -> tuple[tuple[float, ...], float]:
    """Return the inverse frequency of each rotated plane, and the factor on cosine and sine.

    `max_position_embeddings` is the longest sequence in use (`RopeAndCache.max_position_embeddings`); it
    decides between longrope's two lists. Kind `none` has no planes: nothing is rotated.

    Shapes: rotary_dim / 2 frequencies; plane i is made of dimensions i and i + rotary_dim / 2 of a head.
    """
    if rope.kind == "none":
        return (), 1.0
    dim = rope.rotary_dim or head_dim
    frequencies = [rope.theta ** (-2.0 * i / dim) for i in range(dim // 2)]
    stretched = _STRETCH[rope.kind](rope, frequencies, max_position_embeddings)
    return tuple(stretched), attention_factor(rope)


def attention_factor(rope: RopeSpec) -> float:
    """Return what cosine and sine are multiplied by: given, or derived from the stretch."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    if rope.kind == "yarn":
        if rope.mscale and rope.mscale_all_dim:
            return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
        return yarn_mscale(rope.factor, 1.0)
    if rope.kind == "longrope":
        return math.sqrt(1.0 + math.log(rope.factor) / math.log(_trained_length(rope)))
    return 1.0


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return YaRN's attention temperature for a stretch (equation 22, with DeepSeek's `mscale`)."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def with_frequency_divisors(spec: ModelSpec, divisors: Sequence[float]) -> ModelSpec:
    """Return `spec` whose rotary frequencies are divided by numbers from a file (GGUF `rope_freqs.weight`).

    It is a longrope whose two lists are the same and whose attention factor is one.
    """
    factors = tuple(divisors)
    rope = replace(
        spec.rope,
        kind="longrope",
        factor=1.0,
        short_factor=factors,
        long_factor=factors,
        attention_factor=1.0,
    )
    return replace(spec, rope=rope)


def _default(rope: RopeSpec, frequencies: list[float], max_length: int) -> list[float]:
    return frequencies


def _linear(rope: RopeSpec, frequencies: list[float], max_length: int) -> list[float]:
    return [f / rope.factor for f in frequencies]


def _llama3(rope: RopeSpec, frequencies: list[float], max_length: int) -> list[float]:
    """Keep the fast planes, divide the slow ones by the factor, and blend in between."""
    length = _trained_length(rope)

    def stretch(frequency: float) -> float:
        turns = length * frequency / (2.0 * math.pi)  # full turns within the trained context
        if turns >= rope.high_freq_factor:
            return frequency
        if turns <= rope.low_freq_factor:
            return frequency / rope.factor
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return frequency * (keep + (1.0 - keep) / rope.factor)

    return [stretch(f) for f in frequencies]


def _yarn(rope: RopeSpec, frequencies: list[float], max_length: int) -> list[float]:
    """Interpolate slow planes, keep fast ones, and blend along a ramp over the plane's index."""
    dim = 2 * len(frequencies)
    length = _trained_length(rope)

    def plane_with(turns: float) -> float:
        return dim * math.log(length / (turns * 2.0 * math.pi)) / (2.0 * math.log(rope.theta))

    low, high = plane_with(rope.beta_fast), plane_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001  # as Hugging Face avoids the division by zero
    slow = [min(max((i - low) / width, 0.0), 1.0) for i in range(len(frequencies))]
    return [f / rope.factor * s + f * (1.0 - s) for f, s in zip(frequencies, slow, strict=True)]


def _longrope(rope: RopeSpec, frequencies: list[float], max_length: int) -> list[float]:
    beyond = rope.original_max_position_embeddings is not None and max_length > _trained_length(rope)
    factors = rope.long_factor if beyond else rope.short_factor
    return [f / factor for f, factor in zip(frequencies, factors, strict=True)]


def _trained_length(rope: RopeSpec) -> int:
    if rope.original_max_position_embeddings is None:
        raise ValueError(f"rope kind {rope.kind!r} needs original_max_position_embeddings, and it is missing")
    return rope.original_max_position_embeddings


_STRETCH: dict[str, Callable[[RopeSpec, list[float], int], list[float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
