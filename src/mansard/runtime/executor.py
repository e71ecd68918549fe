"""NativeExecutor: runs step plans on this machine's processor, a whole step in one call without the GIL.

It turns a plan into flat arrays, lets the compiled program compute logits and hands them to the sampler. It keeps
nothing about sequences between steps but the KV blocks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mansard.core.types import StepPlan, StepResult
from mansard.runtime.pooling import Pooling
from mansard.runtime.sampler import Sampler, num_logit_rows, row_offsets

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class NativeExecutor:
    """Executes plans with a compiled `mansard._native.Model`."""

    def __init__(self, model: Any, vocab_size: int, sampler: Sampler, hidden_size: int = 0) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._sampler = sampler
        self.pools: dict[str, Pooling] = {}  # by request id: who collects hidden states

    @property
    def isa(self) -> str:
        """Return which kernels run: portable, avx2 or avx512."""
        return str(self._model.isa)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the packed weights."""
        return int(self._model.weight_bytes)

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of the KV cache."""
        return int(self._model.kv_bytes)

    def profile(self, on: bool) -> None:
        """Start adding up the seconds of each op (from zero), or stop."""
        self._model.profile(on)

    @property
    def op_seconds(self) -> tuple[float, ...]:
        """Return the seconds spent in each op since `profile(True)`, in the program's order. Units: seconds."""
        return tuple(self._model.op_seconds)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run `plan` and sample; see `Executor`."""
        start = time.perf_counter()
        logits, offsets = self.compute(plan)
        if self.pools:
            self._pool(plan)
        results = self._sampler.sample(plan, logits, offsets)
        return StepResult(tuple(results), time.perf_counter() - start)

    def compute(self, plan: StepPlan) -> tuple[Floats, list[int]]:
        """Run `plan` without sampling.

        Returns the logits, [rows, V], and where each sequence's rows begin; a sequence has the rows of its last
        `num_logits` tokens, or of all of its step's prompt tokens when it wants their log-probabilities.
        """
        for source, destination in plan.block_copies:
            self._model.copy_block(source, destination)
        rows, offsets = _logit_rows(plan)
        logits = np.empty((len(rows), self._vocab_size), np.float32)
        self._model.step(*_flat(plan), rows, logits)
        return logits, offsets

    def _pool(self, plan: StepPlan) -> None:
        """Hand out the hidden states of requests that are embedded."""
        first = 0
        for sequence in plan.sequences:
            pool = self.pools.get(sequence.request.id)
            if pool is not None:
                rows = np.empty((len(sequence.token_ids), self._hidden_size), np.float32)
                self._model.hidden_states(first, rows)
                pool.add(sequence.start, rows)
            first += len(sequence.token_ids)


def _logit_rows(plan: StepPlan) -> tuple[Ints, list[int]]:
    """Return which of the plan's tokens need logits, and where each sequence's rows begin among them."""
    rows: list[int] = []
    end = 0
    for sequence in plan.sequences:
        end += len(sequence.token_ids)
        rows.extend(range(end - num_logit_rows(sequence), end))
    return np.asarray(rows, np.int32), row_offsets(plan)


def _flat(plan: StepPlan) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return tokens, positions, token counts, ends of block tables and blocks of a plan."""
    tokens: list[int] = []
    positions: list[int] = []
    counts: list[int] = []
    ends: list[int] = []
    blocks: list[int] = []
    for s in plan.sequences:
        count = len(s.token_ids)
        tokens.extend(s.token_ids)
        positions.extend(range(s.start, s.start + count))
        counts.append(count)
        blocks.extend(s.block_ids)
        ends.append(len(blocks))
    arrays = [np.asarray(values, np.int32) for values in (tokens, positions, counts, ends, blocks)]
    return arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]
