"""What each op means, in float32 NumPy: one plain function per op.

Every fast kernel is tested against these. They take whole arrays and know nothing of registers, weights'
names or blocks; `reference` interprets a program with them.

Shape letters: T tokens, H query heads, K KV heads, D head dim, E experts, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mansard.program.ops import MoE
from mansard.specs.model import Activation

Array = npt.NDArray[np.float32]
_erf = np.frompyfunc(math.erf, 1, 1)


def rms_norm(x: Array, weight: Array, eps: float, unit_offset: bool = False) -> Array:
    """Return x / sqrt(mean(x²) + eps) · weight, or · (1 + weight) with `unit_offset`.

    Shapes: x: [..., D]; weight: [D]. Source: arXiv 1910.07467.
    """
    rms = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
    scale = weight + np.float32(1.0) if unit_offset else weight
    return np.asarray(x / rms * scale, np.float32)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return x · weightᵀ + bias. Shapes: x: [T, in]; weight: [out, in]; bias: [out]."""
    y = x @ weight.T
    return y if bias is None else np.asarray(y + bias, np.float32)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)); below -87 the exponential is held where float32 still has it."""
    return np.asarray(1.0 / (1.0 + np.exp(np.minimum(-x, np.float32(87.0)))), np.float32)


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis; a row may hold -inf but not only."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True), np.float32)


def softcap(x: Array, cap: float | None) -> Array:
    """Return cap · tanh(x / cap), or x without a cap. Source: Gemma 2 (arXiv 2408.00118)."""
    return x if cap is None else np.asarray(cap * np.tanh(x / cap), np.float32)


def activate(x: Array, activation: Activation) -> Array:
    """Return the activation of x, element by element; `swiglu_oai` only exists gated."""
    return np.asarray(_ACTIVATIONS[activation](x), np.float32)


def gated_activation(gate: Array, up: Array, activation: Activation, limit: float | None = None) -> Array:
    """Return act(gate) · up, with gpt-oss's clamped variant for `swiglu_oai`. Shapes: both [T, size]."""
    if activation != "swiglu_oai":
        return np.asarray(activate(gate, activation) * up, np.float32)
    if limit is not None:
        gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, -limit, limit).astype(np.float32)
    return np.asarray(gate * sigmoid(np.float32(1.702) * gate) * (up + 1.0), np.float32)


def rotate(x: Array, positions: npt.NDArray[np.int64], frequencies: Array, factor: float) -> Array:
    """Rotate the first planes of each head by position · frequency; dimensions beyond them pass unchanged.

    Plane i is made of dimensions i and i + P, P being the number of planes.

    Shapes: x: [T, heads, D]; positions: [T]; frequencies: [P], 2 P ≤ D. Source: RoFormer (arXiv 2104.09864).
    """
    planes = len(frequencies)
    angle = positions.astype(np.float64)[:, None] * frequencies[None, :].astype(np.float64)
    cos = (np.cos(angle) * factor).astype(np.float32)[:, None, :]
    sin = (np.sin(angle) * factor).astype(np.float32)[:, None, :]
    first, second, rest = x[..., :planes], x[..., planes : 2 * planes], x[..., 2 * planes :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def visible(
    query: npt.NDArray[np.int64], key: npt.NDArray[np.int64], window: int | None, chunk: int | None
) -> npt.NDArray[np.bool_]:
    """Say which keys each query sees: those not after it, in its window and in its chunk.

    Shapes: query: [T] and key: [S] positions; result: [T, S].
    """
    q, k = query[:, None], key[None, :]
    mask = k <= q
    if window is not None:
        mask &= k > q - window
    if chunk is not None:
        mask &= k // chunk == q // chunk
    return np.asarray(mask)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: npt.NDArray[np.bool_],
    scale: float,
    cap: float | None = None,
    sinks: Array | None = None,
) -> Array:
    """Return softmax attention of one sequence's queries over its keys and values.

    Query head h reads KV head h · K // H. `sinks` adds to each head one logit that has no value.

    Shapes: q: [T, H, D]; k, v: [S, K, D]; mask: [T, S]; sinks: [H]; result: [T, H, D].
    """
    T, H, _ = q.shape
    group = H // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = softcap(np.einsum("thd,shd->hts", q, k) * np.float32(scale), cap)
    scores = np.where(mask[None], scores, -np.inf).astype(np.float32)
    if sinks is not None:
        extra = np.broadcast_to(sinks[:, None, None], (H, T, 1))
        scores = np.concatenate([scores, extra], axis=-1)
    probabilities = softmax(scores)[..., : k.shape[0]]
    return np.asarray(np.einsum("hts,shd->thd", probabilities, v), np.float32)


def route(logits: Array, op: MoE, correction: Array | None = None) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the experts chosen for each token and their weights.

    `correction` is added to the scores for the choice alone (DeepSeek-V3); among equals the lower index wins.

    Shapes: logits: [T, E]; correction: [E]; results: [T, top_k].
    """
    if op.scoring == "softmax_after_topk":
        chosen = _top(logits, op.top_k)
        return chosen, softmax(np.take_along_axis(logits, chosen, axis=-1))
    scores = softmax(logits) if op.scoring == "softmax" else sigmoid(logits)
    choice = scores if correction is None else np.asarray(scores + correction, np.float32)
    if op.num_expert_groups > 1:
        choice = _best_groups(choice, op, by_best_two=correction is not None)
    chosen = _top(choice, op.top_k)
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if op.norm_topk_prob:
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return chosen, np.asarray(weights * np.float32(op.routed_scaling_factor), np.float32)


def _best_groups(choice: Array, op: MoE, by_best_two: bool) -> Array:
    """Put -inf on experts outside the best groups; a group scores its best (V2) or its best two (V3)."""
    T, E = choice.shape
    groups = choice.reshape(T, op.num_expert_groups, -1)
    score = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1) if by_best_two else groups.max(axis=-1)
    kept = np.zeros(score.shape, np.bool_)
    np.put_along_axis(kept, _top(score, op.topk_groups), True, axis=-1)
    return np.where(kept[..., None], groups, -np.inf).reshape(T, E).astype(np.float32)


def _top(x: Array, k: int) -> npt.NDArray[np.int64]:
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


def quantize_kv(x: Array, bits: int) -> tuple[npt.NDArray[np.int8], Array, Array]:
    """Return integers, and a scale and a minimum for each token and head.

    8 bits are symmetric: codes -127 … 127, scale = max|x| / 127, minimum 0. 4 bits are not: codes 0 … 15 from the
    least value up, scale = (max - min) / 15. A head of equal values has scale 0. Ties round to even.

    Shapes: x: [..., D]; integers: [..., D]; scales and minimums: [...] float32.
    """
    low = np.zeros(x.shape[:-1], np.float32) if bits == 8 else np.asarray(np.min(x, axis=-1), np.float32)
    limits = (-127, 127) if bits == 8 else (0, 15)
    spread = np.max(np.abs(x), axis=-1) if bits == 8 else np.max(x, axis=-1) - low
    scale = np.asarray(spread / np.float32(limits[1]), np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))[..., None]
    codes = np.where(scale[..., None] > 0, np.clip(np.rint((x - low[..., None]) / divisor), *limits), 0.0)
    return codes.astype(np.int8), scale, low


def hadamard(dim: int) -> Array:
    """Return the orthonormal Walsh-Hadamard matrix, or the identity when `dim` is no power of two.

    Keys of an int4 cache are rotated by it, and queries too, which leaves scores as they are and spreads outliers
    over all dimensions. Shapes: [dim, dim]. Source: QuaRot (arXiv 2404.00456).
    """
    if dim & (dim - 1):
        return np.eye(dim, dtype=np.float32)
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / math.sqrt(dim), np.float32)


def dequantize_kv(codes: npt.NDArray[np.int8], scale: Array, low: Array) -> Array:
    """Return codes · scale + low. Shapes: codes: [..., D]; scale, low: [...]."""
    return np.asarray(codes.astype(np.float32) * scale[..., None] + low[..., None], np.float32)


def round_bf16(x: Array) -> Array:
    """Return x rounded to bfloat16 (nearest, ties to even), as float32; x is finite."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float32)), np.float32)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(math.sqrt(2.0 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)), np.float32)


_ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": lambda x: np.asarray(x * sigmoid(x), np.float32),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, np.float32(0.0)),
    "relu2": lambda x: np.square(np.maximum(x, np.float32(0.0))),
}
