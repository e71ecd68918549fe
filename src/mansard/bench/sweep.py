"""Sweeps: the same load at rising rates or concurrencies, until the server is saturated, and where the knee is.

Saturation of an open loop: the server completes less than 95 % of what arrives. Of a closed loop: the next level adds
less than 5 % throughput. The knee is the point of the curve farthest from the straight line between its ends,
both axes scaled to [0, 1] (Satopää et al., "Finding a Kneedle in a Haystack", 2011, without smoothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.bench.summary import Summary

COMPLETED_SHARE = 0.95
MIN_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One load level: `level` requests/s or requests under way."""

    level: float
    summary: Summary

    @property
    def output_tokens_per_s(self) -> float:
        """Return the throughput."""
        return self.summary.output_tokens_per_s

    def latency(self, metric: str, percentile: float) -> float | None:
        """Return a percentile of a latency, None where it was not measured."""
        found = self.summary.latencies.get(metric)
        return None if found is None else found.percentile(percentile).value


def is_saturated(points: Sequence[SweepPoint], is_open_loop: bool) -> bool:
    """Say whether the last point is beyond what the server can do."""
    if not points:
        return False
    last = points[-1]
    if last.summary.success.rate < COMPLETED_SHARE:
        return True
    if is_open_loop:
        return last.summary.requests_per_s < COMPLETED_SHARE * last.level
    return len(points) > 1 and last.output_tokens_per_s < (1.0 + MIN_GAIN) * points[-2].output_tokens_per_s


def knee(xs: Sequence[float], ys: Sequence[float]) -> int | None:
    """Return the index of the knee of a rising latency (y) over throughput (x); None below three points."""
    if len(xs) < 3 or max(xs) == min(xs) or max(ys) == min(ys):
        return None
    width, height = max(xs) - min(xs), max(ys) - min(ys)
    below = [(x - min(xs)) / width - (y - min(ys)) / height for x, y in zip(xs, ys, strict=True)]
    best = max(range(len(below)), key=lambda i: below[i])
    return best if below[best] > 0.0 else None


def geometric_levels(start: float, stop: float, count: int, *, whole: bool = False) -> list[float]:
    """Return `count` levels from `start` to `stop`, each the same factor above the one before.

    Raises: ValueError for levels that are not above 0 or do not rise.
    """
    if not 0.0 < start <= stop or count < 1:
        raise ValueError(
            f"levels from {start:g} to {stop:g} in {count} steps; give 0 < start ≤ stop and at least 1 step"
        )
    if count == 1:
        return [start]
    levels = [start * (stop / start) ** (i / (count - 1)) for i in range(count)]
    return sorted({float(round(level)) for level in levels}) if whole else levels
