"""Thresholds: limits that a run must keep, for CI.

A limit is on a number with noise; what is compared is the measured value, and the interval is printed beside it so that
a limit within the noise is seen to be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mansard.bench.statistics import Estimate
from mansard.bench.summary import Summary

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)?")
_SCALES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0}
LATENCIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit: `name` as on the command line, the metric's value and what it may be at most (or at least)."""

    name: str
    value: Estimate | None
    limit: float
    is_minimum: bool = False

    @property
    def holds(self) -> bool:
        """Say whether the limit is kept; a metric that could not be measured breaks it."""
        if self.value is None:
            return False
        return self.value.value >= self.limit if self.is_minimum else self.value.value <= self.limit

    def line(self) -> str:
        """Return one line that says how it stands."""
        measured = "not measured" if self.value is None else f"{self.value.value:.6g}"
        if self.value is not None and self.value.low is not None and self.value.high is not None:
            measured += f" [{self.value.low:.6g}, {self.value.high:.6g}]"
        verdict = "holds" if self.holds else "BROKEN"
        return f"{self.name} {self.limit:.6g}: {measured} {verdict}"


def parse_duration_s(text: str) -> float:
    """Return the seconds that `450ms`, `0.45s` or `0.45` says.

    Raises: ValueError for anything else.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write a number and a unit, such as 450ms or 0.45s")
    return float(found[1]) * _SCALES[found[2]]


def latency_threshold(summary: Summary, metric: str, percentile: float, limit_s: float) -> Threshold:
    """Return the limit on a latency's percentile, such as `max-ttft-p99`."""
    found = summary.latencies.get(f"{metric}_s")
    value = None if found is None else found.percentile(percentile)
    return Threshold(f"max-{metric}-p{percentile:g}", value, limit_s)


def check_thresholds(thresholds: Iterable[Threshold]) -> list[str]:
    """Return a line for each limit that is broken."""
    return [t.line() for t in thresholds if not t.holds]
