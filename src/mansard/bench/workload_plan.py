"""From a workload or a trace to the requests of a run: lengths drawn, prompts made, times set.

Lengths and times come from the seed, which stays the same from run to run so that every server sees the same load;
texts come from the nonce, which is fresh for each run so that no cache has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.bench.arrivals import arrival_times_s
from mansard.bench.load import PlannedRequest
from mansard.bench.prompts import HASH_BLOCK_TOKENS, PromptMaker
from mansard.bench.trace import TraceRequest
from mansard.specs.workload import Workload

Lengths = list[tuple[int, int]]
_LENGTH_STREAM = 1


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The longest prompt and output to ask for; longer ones are cut, and the result says how many were.

    `max_total`: what a server's context holds, prompt and output together.
    """

    max_prompt: int | None = None
    max_output: int | None = None
    max_total: int | None = None

    def cut(self, prompt: int, output: int) -> tuple[int, int]:
        """Return lengths within the limits, each at least 1."""
        prompt = min(prompt, self.max_prompt or prompt)
        output = min(output, self.max_output or output)
        if self.max_total is not None:
            output = min(output, max(1, self.max_total - 1))
            prompt = min(prompt, self.max_total - output)
        return max(1, prompt), max(1, output)


def draw_lengths(workload: Workload, count: int, seed: int) -> Lengths:
    """Return `count` (prompt, output) lengths of a workload, drawn independently."""
    random = np.random.default_rng([seed, _LENGTH_STREAM])
    return [
        (
            max(1, round(workload.input_tokens.quantile(float(p)))),
            max(1, round(workload.output_tokens.quantile(float(q)))),
        )
        for p, q in random.random((count, 2))
    ]


def plan_requests(
    lengths: Lengths, maker: PromptMaker, times_s: Sequence[float] | None = None, limits: LengthLimits | None = None,
    hash_ids: Sequence[Sequence[int]] = (),
) -> list[PlannedRequest]:  # fmt: skip
    """Return the requests of these lengths, due at `times_s` (all at once without).

    hash_ids: of each prompt's blocks, where a trace tells which are equal.
    """
    limits = limits or LengthLimits()
    requests = []
    for i, (prompt, output) in enumerate(lengths):
        prompt, output = limits.cut(prompt, output)
        prompt = max(prompt, maker.num_shared_tokens + 1 if maker.num_shared_tokens else 1)
        made = maker.make(i, prompt, hash_ids[i] if hash_ids else ())
        requests.append(PlannedRequest(i, made, output, 0.0 if times_s is None else times_s[i]))
    return requests


def shared_block_share(requests: Sequence[PlannedRequest], hash_ids: Sequence[Sequence[int]]) -> float:
    """Return the share of prompt tokens in leading blocks that an earlier request of the trace had too."""
    seen: set[int] = set()
    shared = whole = 0
    for request, ids in zip(requests, hash_ids, strict=True):
        tokens = request.prompt.num_tokens
        known = next((i for i, name in enumerate(ids) if name not in seen), len(ids))
        shared += min(tokens, known * HASH_BLOCK_TOKENS)
        whole += tokens
        seen.update(ids)
    return shared / whole if whole else 0.0


def workload_times(rate_per_s: float, count: int, burstiness: float, num_warmup: int, seed: int) -> list[float]:
    """Return arrival times of an open loop, its warm-up included at the same rate."""
    return [float(t) for t in arrival_times_s(rate_per_s, count + num_warmup, burstiness, seed)]


def trace_lengths(trace: Sequence[TraceRequest]) -> Lengths:
    """Return a trace's (prompt, output) lengths."""
    return [(r.num_prompt_tokens, r.num_output_tokens) for r in trace]


def trace_times(trace: Sequence[TraceRequest]) -> list[float] | None:
    """Return a trace's times, or None when it has none."""
    times = [r.at_s for r in trace]
    return None if any(t is None for t in times) else [t or 0.0 for t in times]
