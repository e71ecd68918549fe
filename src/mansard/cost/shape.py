"""StepShape: how much one engine step computes, in the few numbers that its price depends on.

Means are enough for a price, exact lists give an exact one. Every number may be a NumPy array, so that one
call prices a whole sweep of batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number: TypeAlias = "float | NDArray[np.float64]"


def largest(a: Number, b: Number) -> Number:
    """Return the larger of two numbers, element by element when one is an array."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def smallest(a: Number, b: Number) -> Number:
    """Return the smaller of two numbers, element by element when one is an array."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def is_any(a: Number) -> bool:
    """Say whether a number, or any element of an array, is above zero."""
    return bool(np.any(a > 0)) if isinstance(a, np.ndarray) else a > 0


@dataclass(frozen=True, slots=True)
class StepShape:
    """The decodes and prompt chunks of one step on one data-parallel rank.

    A decode sequence computes `decode_tokens` tokens (1, or 1 + drafts to verify) over `decode_context` keys,
    its own included. A chunk computes `prefill_tokens` prompt tokens after `prefill_start` cached ones.
    Counts may be fractional: an average over steps.
    """

    num_decodes: Number = 0.0
    decode_context: Number = 0.0
    decode_tokens: Number = 1.0
    num_prefills: Number = 0.0
    prefill_tokens: Number = 0.0
    prefill_start: Number = 0.0
    contexts: tuple[int, ...] = ()  # exact contexts of the decodes; empty: the mean serves for all
    chunks: tuple[tuple[int, int], ...] = ()  # exact (tokens, start) of the chunks; empty: the mean

    @classmethod
    def of(cls, contexts: Sequence[int] = (), chunks: Sequence[tuple[int, int]] = ()) -> StepShape:
        """Return the shape of a step with these decode contexts and these (tokens, start) prompt chunks."""
        num_chunks = max(1, len(chunks))
        return cls(
            num_decodes=float(len(contexts)),
            decode_context=sum(contexts) / max(1, len(contexts)),
            num_prefills=float(len(chunks)),
            prefill_tokens=sum(n for n, _ in chunks) / num_chunks,
            prefill_start=sum(s for _, s in chunks) / num_chunks,
            contexts=tuple(contexts),
            chunks=tuple(chunks),
        )

    @property
    def num_tokens(self) -> Number:
        """Return how many tokens pass through the layers."""
        return self.num_decodes * self.decode_tokens + self.num_prefills * self.prefill_tokens

    @property
    def num_sequences(self) -> Number:
        """Return how many sequences take part."""
        return self.num_decodes + self.num_prefills

    @property
    def num_logit_rows(self) -> Number:
        """Return how many rows the output head computes: every decode token and one per chunk."""
        return self.num_decodes * self.decode_tokens + self.num_prefills

    def decode_kv_tokens(self, limit: int | None) -> Number:
        """Return how many cached tokens all decodes read together, each at most `limit` (its window)."""
        if limit is None:
            return self.num_decodes * self.decode_context
        if self.contexts:
            return float(sum(min(c, limit) for c in self.contexts))
        return self.num_decodes * smallest(self.decode_context, float(limit))

    def prefill_pairs(self, limit: int | None) -> Number:
        """Return the (query, key) pairs of the chunks' causal attention, with at most `limit` keys a query."""
        if self.chunks and limit is not None:
            return float(sum(_pairs(float(n), float(s), float(limit)) for n, s in self.chunks))
        n, s = self.prefill_tokens, self.prefill_start
        if limit is None:
            return self.num_prefills * (n * s + n * (n + 1.0) / 2.0)
        return self.num_prefills * _pairs(n, s, float(limit))

    def prefill_kv_tokens(self, limit: int | None) -> Number:
        """Return how many cached tokens the chunks read together."""
        n, s = self.prefill_tokens, self.prefill_start
        return self.num_prefills * (n + (s if limit is None else smallest(s, float(limit))))


def _pairs(tokens: Number, start: Number, limit: float) -> Number:
    """Sum min(start + i, limit) over i = 1 … tokens."""
    growing = smallest(largest(limit - start, 0.0), tokens)  # queries that still see everything
    return growing * start + growing * (growing + 1.0) / 2.0 + (tokens - growing) * limit
