"""Arrival processes: when requests come, as sorted times from a seed.

Poisson is what independent users make; production traces are burstier (`cv` above 1, a gamma process), daily load
rises and falls, and benchmarks send all at once or evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal["poisson", "gamma", "constant", "diurnal", "burst"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come. Units: requests per second, seconds.

    cv: coefficient of variation of the gaps of a gamma process (1 is Poisson). diurnal: a Poisson process whose rate
    swings by ± `swing` of its mean over `period_s`. burst: all at once.

    Raises: ValueError naming what is out of range.
    """

    kind: Kind = "poisson"
    rate_req_s: float = 1.0
    cv: float = 1.0
    period_s: float = 86400.0
    swing: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"arrivals are {self.kind!r}; choose one of {', '.join(get_args(Kind))}")
        if not (self.rate_req_s > 0.0 and self.cv > 0.0 and self.period_s > 0.0):
            raise ValueError(
                f"rate {self.rate_req_s} requests/s, variation {self.cv} and period {self.period_s} s "
                "must all be above 0"
            )
        if not 0.0 <= self.swing <= 1.0:
            raise ValueError(f"swing {self.swing} must be between 0 and 1")

    def times(self, count: int, random: np.random.Generator) -> Floats:
        """Return the arrival times of `count` requests, rising. Units: seconds."""
        if self.kind == "burst":
            return np.zeros(count)
        if self.kind == "constant":
            return np.arange(count) / self.rate_req_s
        if self.kind == "gamma":
            shape = 1.0 / self.cv**2
            gaps = random.gamma(shape, 1.0 / (shape * self.rate_req_s), count)
        else:
            gaps = random.exponential(1.0 / self.rate_req_s, count)
        times: Floats = np.cumsum(gaps)
        return self._warped(times) if self.kind == "diurnal" else times

    def _warped(self, times: Floats) -> Floats:
        """Map an even process to one of rate r·(1 + swing · sin 2πt/T): invert the expected count Λ(t)."""
        turns = 2.0 * pi / self.period_s
        grid = np.linspace(0.0, times[-1] + self.period_s, max(1024, 64 * int(times[-1] / self.period_s + 2)))
        expected = grid + self.swing / turns * (1.0 - np.cos(turns * grid))
        return np.interp(times, expected, grid)
