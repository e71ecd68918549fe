"""Pooling: one vector for a whole text, collected from the hidden states of its tokens as steps compute them.

A text to embed is an ordinary request of the scheduler that samples one token nobody reads; so it is chunked,
preempted and interleaved with others like any prompt. A chunk computed again after a preemption adds nothing
twice, because every row has its position.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

PoolingKind = Literal["mean", "last"]
Floats = npt.NDArray[np.float32]


class Pooling:
    """Pools the hidden states (after the final norm) of `num_tokens` tokens: their mean, or the last one's."""

    def __init__(self, kind: PoolingKind, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._kind = kind
        self._num_seen = 0
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, start: int, rows: Floats) -> None:
        """Take the rows of the tokens at positions start, start + 1, …. Shapes: rows: [N, hidden_size]."""
        fresh = rows[max(0, self._num_seen - start) : self.num_tokens - start]
        if not len(fresh):
            return
        assert start <= self._num_seen, "rows were left out"
        self._num_seen += len(fresh)
        if self._kind == "last":
            self._sum = fresh[-1].astype(np.float64)
        else:
            added = fresh.sum(axis=0, dtype=np.float64)
            self._sum = added if self._sum is None else self._sum + added

    def embedding(self) -> Floats:
        """Return the pooled vector at unit length. Raises: ValueError when it has none (not finite, or zero)."""
        assert self._sum is not None and self._num_seen == self.num_tokens, "not every token was seen"
        length = float(np.linalg.norm(self._sum))
        if not np.isfinite(length) or length == 0.0:
            raise ValueError("the model's hidden states are not finite, so there is no embedding")
        return (self._sum / length).astype(np.float32)


class PoolingExecutor(Protocol):
    """An executor that can hand out hidden states."""

    pools: dict[str, Pooling]  # by request id; each step adds the rows of those that it computes
