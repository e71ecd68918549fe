"""LengthDistribution: how long prompts and outputs are, as a quantile function.

Traces publish a few quantiles. Between two of them the logarithm of the length is taken as linear, which
reproduces the published means of the traces in `presets/workloads.toml`; a planner integrates it, a simulator
feeds it uniform numbers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_POINTS = 1001  # quantiles kept of an empirical sample


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Lengths in tokens: `points` are (probability, length), rising from 0 to 1."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Check that the points are a quantile function.

        Raises: ValueError naming what is wrong.
        """
        probabilities = [p for p, _ in self.points]
        lengths = [n for _, n in self.points]
        rising = all(a < b for a, b in pairwise(probabilities))
        if len(self.points) < 2 or probabilities[0] != 0.0 or probabilities[-1] != 1.0 or not rising:
            raise ValueError(f"quantiles {probabilities} must rise from 0 to 1")
        if lengths != sorted(lengths) or lengths[0] < 1 or not math.isfinite(lengths[-1]):
            raise ValueError(f"lengths {lengths} must rise from at least 1 token")

    @classmethod
    def fixed(cls, tokens: float) -> LengthDistribution:
        """Return the distribution that is always `tokens`."""
        return cls(((0.0, float(tokens)), (1.0, float(tokens))))

    @classmethod
    def from_quantiles(cls, quantiles: Mapping[str, float]) -> LengthDistribution:
        """Return the distribution with quantiles named `p0` … `p100`; other keys are not read."""
        named = {key: value for key, value in quantiles.items() if key.startswith("p")}
        return cls(tuple(sorted((float(key[1:]) / 100.0, float(value)) for key, value in named.items())))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> LengthDistribution:
        """Return the empirical distribution of `lengths`, with at most 1,001 quantiles.

        Raises: ValueError when there are none.
        """
        if not lengths:
            raise ValueError("a distribution needs at least one length")
        values = sorted(max(1, n) for n in lengths)
        count = min(MAX_POINTS, max(2, len(values)))
        at = [i / (count - 1) for i in range(count)]
        return cls(tuple((p, float(values[round(p * (len(values) - 1))])) for p in at))

    def quantile(self, probability: float) -> float:
        """Return the length that a share `probability` of requests does not exceed.

        Units: tokens, not rounded. Raises: ValueError outside [0, 1].
        """
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability {probability} is outside 0 to 1")
        at = [p for p, _ in self.points]
        right = min(bisect.bisect_right(at, probability), len(at) - 1)
        (p0, n0), (p1, n1) = self.points[right - 1], self.points[right]
        share = (probability - p0) / (p1 - p0)
        return n0 * math.exp(share * math.log(n1 / n0))

    @property
    def mean(self) -> float:
        """Return the mean length in tokens: the integral of the quantile function."""
        return sum((p1 - p0) * _log_mean(n0, n1) for (p0, n0), (p1, n1) in self._segments())

    @property
    def minimum(self) -> float:
        """Return the least length."""
        return self.points[0][1]

    @property
    def maximum(self) -> float:
        """Return the greatest length."""
        return self.points[-1][1]

    def grid(self, count: int = 1024) -> tuple[float, ...]:
        """Return `count` equally likely lengths, the middles of as many equal shares."""
        return tuple(self.quantile((i + 0.5) / count) for i in range(count))

    def _segments(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return list(pairwise(self.points))


def _log_mean(a: float, b: float) -> float:
    """Return the mean of a·(b/a)^t over t in [0, 1]."""
    return a if math.isclose(a, b, rel_tol=1e-9) else (b - a) / math.log(b / a)
