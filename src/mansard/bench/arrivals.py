"""When requests come: Poisson, burstier or smoother than Poisson, constant, and ramps.

Gaps are gamma-distributed with shape b (the burstiness, 1 is Poisson, infinity is constant) and mean 1/rate, so the
coefficient of variation is 1/√b. The same seed gives the same schedule whatever is under test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def gaps_s(rate_per_s: float, count: int, burstiness: float = 1.0, seed: int = 0) -> Times:
    """Return `count` gaps between arrivals; an infinite rate has none: all come at once. Units: seconds.

    Raises: ValueError for a rate or a burstiness that is not above 0.
    """
    if not rate_per_s > 0.0:
        raise ValueError(f"rate is {rate_per_s} requests/s; it must be above 0 (inf: all at once)")
    if math.isinf(rate_per_s):
        return np.zeros(count)
    return unit_gaps(count, burstiness, seed) / rate_per_s


def unit_gaps(count: int, burstiness: float = 1.0, seed: int = 0) -> Times:
    """Return `count` gaps of mean 1.

    Raises: ValueError for a burstiness that is not above 0.
    """
    if not burstiness > 0.0:
        raise ValueError(f"burstiness is {burstiness}; it must be above 0 (1: Poisson, inf: constant gaps)")
    if math.isinf(burstiness):
        return np.ones(count)
    return np.random.default_rng(seed).gamma(burstiness, 1.0 / burstiness, count)


def arrival_times_s(rate_per_s: float, count: int, burstiness: float = 1.0, seed: int = 0) -> Times:
    """Return when `count` requests come; the first comes at 0."""
    if count == 0:
        return np.zeros(0)
    return np.concatenate([[0.0], np.cumsum(gaps_s(rate_per_s, count - 1, burstiness, seed))])


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that goes linearly from one value to another. Units: requests per second, seconds."""

    start_per_s: float
    end_per_s: float
    duration_s: float

    @classmethod
    def parse(cls, text: str) -> Ramp:
        """Read `START:END:SECONDS`.

        Raises: ValueError when it is something else or a number is not above 0.
        """
        try:
            start, end, duration = (float(part) for part in text.removesuffix("s").split(":"))
        except ValueError as error:
            raise ValueError(f"ramp is {text!r}; write START:END:SECONDS, such as 1:16:60") from error
        if not all(0.0 < value < math.inf for value in (start, end, duration)):
            raise ValueError(f"ramp is {text!r}; all three numbers must be above 0")
        return cls(start, end, duration)

    def __str__(self) -> str:
        return f"{self.start_per_s:g} to {self.end_per_s:g} req/s in {self.duration_s:g} s"


def ramp_times_s(
    start_per_s: float, end_per_s: float, duration_s: float, burstiness: float = 1.0, seed: int = 0
) -> Times:
    """Return arrivals whose rate goes linearly from one value to another within `duration_s`.

    Unit-rate arrivals are mapped through the inverse of Λ(t) = start·t + (end - start)·t²/(2·duration).
    Raises: ValueError for a rate or duration that is not above 0.
    """
    if not (start_per_s > 0.0 and end_per_s > 0.0 and duration_s > 0.0):
        raise ValueError(f"ramp from {start_per_s} to {end_per_s}/s in {duration_s} s; all three must be above 0")
    total = (start_per_s + end_per_s) / 2.0 * duration_s
    count = math.ceil(total + 6.0 * math.sqrt(total) + 6.0)
    units = np.cumsum(unit_gaps(count, burstiness, seed))
    units = units[units <= total]
    slope = (end_per_s - start_per_s) / duration_s
    if abs(slope) * duration_s < 1e-12 * start_per_s:
        return units / start_per_s
    return (np.sqrt(start_per_s**2 + 2.0 * slope * units) - start_per_s) / slope
