"""Summary: a simulation in the numbers that decide, each as defined in docs/simulation.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mansard.sim.outcome import RequestOutcome, SimulationResult
from mansard.specs.slo import Slo

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over requests (or tokens). Units: those of the metric; nan when there is nothing to measure."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of values; percentiles are interpolated between neighbours."""
        data = np.fromiter(values, dtype=np.float64)
        if not len(data):
            return NOTHING
        p50, p90, p95, p99 = np.percentile(data, PERCENTILES).tolist()
        return cls(float(data.mean()), p50, p90, p95, p99, float(data.max()))

    @classmethod
    def weighted(cls, values: Floats, counts: Floats) -> Spread:
        """Return the spread of values that occurred `counts` times each; a percentile is an observed value."""
        if not len(values):
            return NOTHING
        order = np.argsort(values, kind="stable")
        values, heights = values[order], np.cumsum(counts[order])
        at = np.searchsorted(heights, np.array(PERCENTILES) / 100.0 * heights[-1], side="left")
        mean = float(np.sum(values * counts[order]) / heights[-1])
        p50, p90, p95, p99 = values[np.minimum(at, len(values) - 1)].tolist()
        return cls(mean, p50, p90, p95, p99, float(values[-1]))

    def at(self, percentile: float) -> float | None:
        """Return one of the kept percentiles, or None."""
        found: float | None = getattr(self, f"p{percentile:g}", None)
        return found


NOTHING = Spread(nan, nan, nan, nan, nan, nan)


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one simulation. Units: seconds, tokens, requests; shares between 0 and 1.

    goodput_req_s: served requests per second that kept every limit of the SLO; slo_share: of all requests, refused ones
    included. Batch and cache are averages over busy time.
    """

    num_requests: int
    num_refused: int
    duration_s: float
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    queue_s: Spread
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_req_s: float | None
    slo_share: float | None
    mean_running: float
    max_running: int
    mean_kv_usage: float
    max_kv_usage: float
    num_preemptions: int
    prefix_hit_share: float
    num_steps: int
    busy_share: float
    usd_per_million_output_tokens: float | None

    def meets(self, slo: Slo) -> bool:
        """Say whether the SLO's percentile of all requests kept its limits."""
        return self.slo_share is not None and self.slo_share >= slo.percentile / 100.0

    def as_dict(self) -> Mapping[str, Any]:
        """Return the numbers for JSON."""
        return asdict(self)


def summarize(result: SimulationResult, slo: Slo | None = None) -> Summary:
    """Return the summary of a simulation."""
    served, duration = result.served, result.duration_s
    output = sum(r.num_output_tokens for r in served)
    total = output + sum(r.num_prompt_tokens for r in served)
    good = None if slo is None else sum(_keeps(r, slo) for r in served)
    gaps, counts = zip(*(lane.timeline.gaps_s() for lane in result.replicas), strict=True)
    queries = sum(lane.num_prefix_query_tokens for lane in result.replicas)
    usd, span = result.deployment.usd_per_hour(), max(duration, 1e-12)
    return Summary(
        num_requests=len(result.requests),
        num_refused=len(result.requests) - len(served),
        duration_s=duration,
        ttft_s=Spread.of(r.ttft_s for r in served),
        tpot_s=Spread.of(r.tpot_s for r in served if r.tpot_s is not None),
        itl_s=Spread.weighted(np.concatenate(gaps), np.concatenate(counts)),
        e2e_s=Spread.of(r.e2e_s for r in served),
        queue_s=Spread.of(r.first_scheduled_s - r.arrival_s for r in served),
        requests_per_s=len(served) / span,
        output_tokens_per_s=output / span,
        total_tokens_per_s=total / span,
        goodput_req_s=None if good is None else good / span,
        slo_share=None if good is None else good / max(1, len(result.requests)),
        **_load(result, span),
        num_preemptions=sum(lane.num_preemptions for lane in result.replicas),
        prefix_hit_share=sum(lane.num_prefix_hit_tokens for lane in result.replicas) / max(1, queries),
        usd_per_million_output_tokens=None if usd is None or not output else usd / 3600.0 * duration / output * 1e6,
    )


def _keeps(request: RequestOutcome, slo: Slo) -> bool:
    return slo.is_met(request.ttft_s, request.tpot_s)


def _load(result: SimulationResult, span: float) -> dict[str, Any]:
    """Return batch and cache over busy time, steps and the share of time in which replicas were busy."""
    busy = running = usage = 0.0
    peak_running, peak_usage, num_steps = 0.0, 0.0, 0
    for lane in result.replicas:
        timeline = lane.timeline
        if not len(timeline):
            continue
        durations = timeline.durations_s()
        batch, used = timeline.by_step("num_running"), timeline.by_step("num_used_blocks") / lane.num_blocks
        busy += float(durations.sum())
        running += float((batch * durations).sum())
        usage += float((used * durations).sum())
        peak_running, peak_usage = max(peak_running, float(batch.max())), max(peak_usage, float(used.max()))
        num_steps += timeline.num_steps
    return {
        "mean_running": running / busy if busy else 0.0,
        "max_running": int(peak_running),
        "mean_kv_usage": usage / busy if busy else 0.0,
        "max_kv_usage": peak_usage,
        "num_steps": num_steps,
        "busy_share": busy / (span * max(1, len(result.replicas))),
    }
