"""From logits to candidates: temperature, then min_p, top_k and top_p, and the draw among what is left.

The full vocabulary (up to 262 thousand entries) is never sorted: top_k selects, and top_p sorts only those
above a threshold that it lowers until they hold enough probability. Sources: nucleus sampling (arXiv
1904.09751), min-p (arXiv 2407.01082); the order min_p, top_k, top_p is vLLM's, each working on what the one
before left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.types import SamplingParams
from mansard.runtime.logprobs import FloatArray, IntArray, best_ids

_BLOCK = 256  # weights summed at once before the draw looks into one block
_FIRST_THRESHOLD = 0.05  # top_p: weights relative to the greatest
_LAST_THRESHOLD = 1e-9


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be chosen and their weights (unnormalized probabilities).

    `ids=None`: the whole vocabulary.
    """

    weights: FloatArray
    ids: IntArray | None = None

    def draw(self, unit: float) -> int:
        """Return the token whose share of the cumulative weight contains `unit`, a number in [0, 1)."""
        size = self.weights.shape[0]
        whole = size // _BLOCK * _BLOCK
        blocks = self.weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
        totals = np.append(blocks, self.weights[whole:].sum(dtype=np.float64))
        block, rest = _place(totals, unit * float(totals.sum()))
        start = block * _BLOCK
        place = start + _place(self.weights[start : start + _BLOCK], rest)[0]
        return place if self.ids is None else int(self.ids[place])


def _place(weights: npt.NDArray[np.floating], target: float) -> tuple[int, float]:
    """Return where the running sum of `weights` passes `target`, and what of `target` remains there."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    place = int(np.searchsorted(cumulative, target, side="right"))
    if place >= cumulative.shape[0]:  # rounding: the last entry with weight
        place = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return place, target - (float(cumulative[place - 1]) if place else 0.0)


def candidates(row: FloatArray, params: SamplingParams) -> Candidates:
    """Return what `params` leaves of the distribution of `row`, at least one token.

    Shapes: row: [V] logits, its maximum finite. Subtracting the maximum before dividing by the temperature
    keeps every exponent ≤ 0, so no temperature overflows.
    """
    shifted = row - row.max()
    with np.errstate(over="ignore"):
        weights = np.exp(shifted / np.float32(min(max(params.temperature, 1e-30), 1e30)))
    ids: IntArray | None = None
    if params.min_p > 0.0:
        ids = np.flatnonzero(weights >= np.float32(params.min_p))
        weights = weights[ids]
    if 0 < params.top_k < weights.shape[0]:
        kept = np.sort(best_ids(weights, params.top_k))
        ids, weights = _keep(ids, kept), weights[kept]
    if params.top_p < 1.0:
        kept = np.sort(_nucleus(weights, params.top_p))
        ids, weights = _keep(ids, kept), weights[kept]
    return Candidates(weights, ids)


def _keep(ids: IntArray | None, kept: IntArray) -> IntArray:
    return kept if ids is None else ids[kept]


def _nucleus(weights: FloatArray, top_p: float) -> IntArray:
    """Return the fewest most likely entries whose weights sum to at least `top_p` of the whole.

    The greatest weight is 1, so a threshold lowered step by step finds a small superset, which alone is
    sorted.
    """
    wanted = top_p * float(weights.sum(dtype=np.float64))
    threshold = np.float32(_FIRST_THRESHOLD)
    while True:
        ids = np.flatnonzero(weights >= threshold)
        if float(weights[ids].sum(dtype=np.float64)) >= wanted or ids.shape[0] == weights.shape[0]:
            break
        threshold = threshold * np.float32(0.125) if threshold > _LAST_THRESHOLD else np.float32(0.0)
    ids = ids[np.argsort(-weights[ids], kind="stable")]
    cumulative = np.cumsum(weights[ids], dtype=np.float64)
    count = int(np.searchsorted(cumulative, wanted, side="left")) + 1
    return ids[:count]
