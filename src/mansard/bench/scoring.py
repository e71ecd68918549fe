"""Scoring: log-probabilities of every token of a text, straight from an executor.

A window of tokens is computed as one sequence in steps of the model's budget, and every position's logits come back.
Numbers are float64 from the logits on: a perplexity is a mean over a hundred thousand logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mansard.core.types import Request, ScheduledSequence, StepPlan

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
ROWS = 8  # logits turned into log-probabilities at once: 8 × 50k × 8 bytes stay in the caches


class LogitExecutor(Protocol):
    """Computes a plan's logits without sampling; `NativeExecutor` is one."""

    def compute(self, plan: StepPlan) -> tuple[Floats, list[int]]:
        """Return logits, [rows, V], and where each sequence's rows begin."""
        ...


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model that scores: its executor and the sizes it was built with."""

    executor: LogitExecutor
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int

    @property
    def max_tokens(self) -> int:
        """Return the longest window it can compute."""
        return self.num_blocks * self.block_size

    def logits(self, token_ids: Sequence[int]) -> Iterator[Floats]:
        """Yield the logits after each token of one window, a step at a time: [tokens of the step, V].

        Raises: ValueError for a window that does not fit the KV cache.
        """
        if len(token_ids) > self.max_tokens:
            raise ValueError(
                f"a window of {len(token_ids):,} tokens; the KV cache holds {self.max_tokens:,} (lower --context)"
            )
        blocks = tuple(range(-(-len(token_ids) // self.block_size)))
        request = Request("scoring", tuple(token_ids))
        for start in range(0, len(token_ids), self.max_num_batched_tokens):
            part = tuple(token_ids[start : start + self.max_num_batched_tokens])
            used = blocks[: -(-(start + len(part)) // self.block_size)]
            sequence = ScheduledSequence("scoring", start, part, used, len(part), request)
            logits, _ = self.executor.compute(StepPlan((sequence,)))
            yield logits


def log_softmax(logits: Floats) -> Doubles:
    """Return log-probabilities, [rows, V], in float64."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


def target_logprobs(logits: Floats, targets: Sequence[int]) -> Doubles:
    """Return log p(target) for each row; only the normalizer is computed, in float64 over blocks of rows."""
    found = np.empty(len(targets))
    ids = np.asarray(targets)
    for start in range(0, len(targets), ROWS):
        rows = logits[start : start + ROWS]
        peak = rows.max(axis=1, keepdims=True)
        # exp of a difference of float32 values, summed in float64: each term is good to 1e-7, their sum to 1e-9 or so
        total = np.exp(rows - peak).sum(axis=1, dtype=np.float64)
        chosen = rows[np.arange(len(rows)), ids[start : start + ROWS]].astype(np.float64)
        found[start : start + ROWS] = chosen - peak[:, 0] - np.log(total)
    return found
