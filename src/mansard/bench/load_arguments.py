"""LoadArguments: what a person says of a load, and the plan and description that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mansard.bench.arrivals import Ramp, ramp_times_s
from mansard.bench.load import LoadPlan
from mansard.bench.prompts import PromptMaker, TextTokenizer, WordTokenizer
from mansard.bench.trace import read_trace
from mansard.bench.workload_plan import (
    LengthLimits,
    Lengths,
    draw_lengths,
    plan_requests,
    shared_block_share,
    trace_lengths,
    trace_times,
    workload_times,
)
from mansard.specs.workload import find_workload

DEFAULT_CONCURRENCY = 8
NO_LIMITS = LengthLimits()


@dataclass(frozen=True, slots=True)
class LoadArguments:
    """A load: of a named workload (or `PROMPT/OUTPUT` lengths) or a trace file; a rate makes it an open loop.

    num_warmup: requests before the measured ones, None for as many as run at once (a closed loop's opening wave).
    seed: of lengths and times; nonce: of texts.
    """

    workload: str = "128/64"
    trace: str | None = None
    trace_speed: float = 1.0
    num_requests: int = 64
    rate_per_s: float | None = None
    burstiness: float = 1.0
    ramp: Ramp | None = None  # instead of a rate; says how many requests come
    max_concurrency: int | None = None
    num_warmup: int | None = None
    num_shared_tokens: int = 0
    seed: int = 0
    nonce: int = 0
    limits: LengthLimits = NO_LIMITS

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises: ValueError with the number and its limit.
        """
        if self.num_requests < 1:
            raise ValueError(f"{self.num_requests} requests; give at least 1")
        if self.rate_per_s is not None and not self.rate_per_s > 0.0:
            raise ValueError(f"rate is {self.rate_per_s} requests/s; it must be above 0")
        if self.ramp is not None and (self.rate_per_s is not None or self.trace is not None):
            raise ValueError(f"a ramp of {self.ramp} and a rate or trace; give one of them")
        if self.num_warmup is not None and self.num_warmup < 0:
            raise ValueError(f"{self.num_warmup} warm-up requests; give 0 or more")

    def at_rate(self, rate_per_s: float) -> LoadArguments:
        """Return the same load at another rate."""
        return replace(self, rate_per_s=rate_per_s)

    def at_concurrency(self, concurrency: int) -> LoadArguments:
        """Return the same load with another number of requests at once."""
        return replace(self, max_concurrency=concurrency, rate_per_s=None)

    @property
    def concurrency(self) -> int | None:
        """Return how many requests may run at once; None: any number."""
        is_open = self.rate_per_s is not None or self.trace is not None or self.ramp is not None
        return self.max_concurrency or (None if is_open else DEFAULT_CONCURRENCY)

    @property
    def warmup(self) -> int:
        """Return how many requests come before the measured ones."""
        if self.num_warmup is not None:
            return self.num_warmup
        if self.trace is not None or self.ramp is not None:
            return 0
        return min(self.concurrency or DEFAULT_CONCURRENCY, self.num_requests)

    def plan(self, tokenizer: TextTokenizer) -> tuple[LoadPlan, dict[str, Any]]:
        """Return what to send and how results describe it.

        Raises: ValueError when the trace cannot be read or the workload is unknown.
        """
        lengths, times, name, source, hash_ids = self._lengths_and_times()
        maker = PromptMaker(tokenizer, self.nonce, self.num_shared_tokens)
        requests = plan_requests(lengths, maker, times, self.limits, hash_ids)
        is_open = times is not None
        num_cut = sum(self.limits.cut(p, o) != (p, o) for p, o in lengths)
        described = {
            "name": name,
            "source": source,
            "num_requests": len(requests) - self.warmup,
            "num_warmup": self.warmup,
            "rate_req_s": self.rate_per_s,
            "ramp": None if self.ramp is None else str(self.ramp),
            "burstiness": self.burstiness if self.rate_per_s is not None or self.ramp is not None else None,
            "max_concurrency": self.concurrency,
            "shared_prefix_tokens": self.num_shared_tokens,
            "shared_block_share": shared_block_share(requests, hash_ids) if any(hash_ids) else None,
            "mean_prompt_tokens": sum(r.prompt.num_tokens for r in requests) / len(requests),
            "mean_output_tokens": sum(r.num_output_tokens for r in requests) / len(requests),
            "num_cut": num_cut,
            "lengths": "estimated" if isinstance(tokenizer, WordTokenizer) else "exact",
            "trace_speed": self.trace_speed if self.trace is not None else None,
            "seed": self.seed,
            "nonce": self.nonce,
        }
        return LoadPlan(requests, is_open, self.concurrency, self.warmup), described

    def _lengths_and_times(self) -> tuple[Lengths, list[float] | None, str, str, list[tuple[int, ...]]]:
        total = self.num_requests + self.warmup
        if self.trace is not None:
            trace = read_trace(self.trace, total, self.trace_speed)
            times = trace_times(trace)
            if times is None and self.rate_per_s is None and self.max_concurrency is None:
                raise ValueError(f"{self.trace} has no times; give --rate or --concurrency")
            if self.rate_per_s is not None:
                times = workload_times(self.rate_per_s, len(trace), self.burstiness, 0, self.seed)
            return trace_lengths(trace), times, self.trace, "trace file", [r.hash_ids for r in trace]
        workload = find_workload(self.workload)
        if self.ramp is not None:
            ramp = self.ramp
            found = ramp_times_s(ramp.start_per_s, ramp.end_per_s, ramp.duration_s, self.burstiness, self.seed)
            if not len(found):
                raise ValueError(f"no request comes in a ramp of {ramp}; make it longer or steeper")
            times = [float(t) for t in found]
            return draw_lengths(workload, len(times), self.seed), times, workload.name, workload.source, []
        lengths = draw_lengths(workload, total, self.seed)
        if self.rate_per_s is None:
            return lengths, None, workload.name, workload.source, []
        times = workload_times(self.rate_per_s, self.num_requests, self.burstiness, self.warmup, self.seed)
        return lengths, times, workload.name, workload.source, []
