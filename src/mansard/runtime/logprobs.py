"""Log-probabilities of tokens under a row of logits.

They are those of the raw model distribution: before penalties, biases, masks and temperature (vLLM's
default, `raw_logprobs`), so that they mean the same whatever the request's sampling settings. Alternatives
of probability zero are left out, so every number is finite.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.core.types import TokenLogprobs

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_BLOCKS_PER_ENTRY = 4  # blocks per wanted entry: more of them find fewer superfluous entries


def best_ids(row: FloatArray, count: int) -> IntArray:
    """Return the ids of the `count` greatest entries of `row`, best first; among equals the lowest id wins.

    Shapes: row: [V]; result: [min(count, V)].
    """
    size = row.shape[0]
    count = min(count, size)
    if count <= 0:
        return np.zeros(0, np.int64)
    ids = np.flatnonzero(row >= _lower_bound(row, count))
    order = np.argsort(-row[ids], kind="stable")
    return ids[order[:count]]


def _lower_bound(row: FloatArray, count: int) -> float:
    """Return a value that at least `count` entries of `row` reach, and few more.

    The `count` greatest of the maxima of disjoint blocks are `count` entries, so the least of them bounds the
    `count`-th greatest entry from below; one pass over the row instead of a selection within it.
    """
    block = row.shape[0] // (_BLOCKS_PER_ENTRY * count)
    if block < 2:
        return float(np.partition(row, row.shape[0] - count)[row.shape[0] - count])
    maxima = row[: row.shape[0] // block * block].reshape(-1, block).max(axis=1)
    return float(np.partition(maxima, maxima.shape[0] - count)[maxima.shape[0] - count])


def log_normalizer(row: FloatArray) -> float:
    """Return log Σ exp(row), computed without overflow."""
    top = float(row.max())
    return top + float(np.log(np.exp(row - np.float32(top)).sum(dtype=np.float64)))


def token_rank(row: FloatArray, token_id: int) -> int:
    """Return the place of `token_id` in `row`, 1 being the most likely; of equals the lowest id comes
    first.
    """
    value = row[token_id]
    return 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token_id] == value))


def token_logprobs(row: FloatArray, token_id: int, num_alternatives: int) -> TokenLogprobs:
    """Return `token_id`'s log-probability and rank under `row`, and the most likely alternatives.

    Shapes: row: [V] raw logits, finite or -inf, not all -inf.
    """
    log_z = log_normalizer(row)
    top = tuple((int(i), float(row[i]) - log_z) for i in best_ids(row, num_alternatives) if np.isfinite(row[i]))
    return TokenLogprobs(token_id, float(row[token_id]) - log_z, token_rank(row, token_id), top)
