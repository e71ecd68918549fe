"""Percentiles and means with confidence intervals.

A percentile is the linear interpolation between order statistics (type 7, NumPy's default). Its interval is the
distribution-free one: two order statistics between which the true quantile lies with the probability asked for, from
the binomial distribution. A mean's interval is the normal one with Student's quantile. No random numbers: the same
sample gives the same interval.

Source: Hyndman and Fan, "Sample quantiles in statistical packages" (1996); David and Nagaraja, "Order Statistics",
section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
EXACT_UP_TO = 5000  # values; beyond, the binomial is as good as normal
FEW_DEGREES = {1: 12.706, 2: 4.303, 3: 3.182}  # 97.5 % quantiles where the expansion is poor


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the interval that holds the true one with 95 % confidence; None where the sample is too small."""

    value: float
    low: float | None = None
    high: float | None = None

    def overlaps(self, other: Estimate) -> bool | None:
        """Say whether the intervals overlap; None when one is not known."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Distribution:
    """One metric over the requests (or tokens) of a run, in the metric's own unit."""

    count: int
    mean: Estimate
    std: float
    minimum: float
    maximum: float
    percentiles: dict[str, Estimate]

    def percentile(self, q: float) -> Estimate:
        """Return the estimate of a percentile that was computed, such as 99."""
        return self.percentiles[name_of(q)]


def name_of(q: float) -> str:
    """Return how a percentile is called: p50, p99, p99.9."""
    return f"p{q:g}"


def describe(values: Iterable[float], percentiles: Sequence[float] = PERCENTILES) -> Distribution | None:
    """Return the distribution of a sample, None when it is empty."""
    ordered = sorted(values)
    if not ordered:
        return None
    average, std = _mean(ordered), _std(ordered)
    half = None if len(ordered) < 2 else student_quantile(len(ordered) - 1) * std / math.sqrt(len(ordered))
    mean = Estimate(average) if half is None else Estimate(average, average - half, average + half)
    found = {name_of(q): percentile(ordered, q) for q in percentiles}
    return Distribution(len(ordered), mean, std, ordered[0], ordered[-1], found)


def percentile(ordered: Sequence[float], q: float) -> Estimate:
    """Return the q-th percentile of a sorted sample with its interval; none where its ends are not in the sample.

    Raises: ValueError for an empty sample or a q outside [0, 100].
    """
    if not ordered or not 0.0 <= q <= 100.0:
        raise ValueError(f"percentile {q} of {len(ordered)} values: q must be in [0, 100] and the sample not empty")
    place = q / 100.0 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    value = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    ranks = interval_ranks(len(ordered), q / 100.0)
    return Estimate(value) if ranks is None else Estimate(value, ordered[ranks[0] - 1], ordered[ranks[1] - 1])


def interval_ranks(count: int, p: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Return ranks (from 1) of the order statistics that enclose the p-quantile with at least `confidence`.

    Each end leaves at most half of the rest outside. None when the sample is too small to have such ends.
    """
    if not 0.0 < p < 1.0:
        return None
    tail = (1.0 - confidence) / 2.0
    if count > EXACT_UP_TO:
        return _normal_ranks(count, p, NormalDist().inv_cdf(1.0 - tail))
    low = high = None
    cumulative = 0.0
    for k in range(count + 1):  # cumulative: P(Bin(count, p) <= k), the chance that the quantile is below rank k + 1
        before, cumulative = cumulative, cumulative + _binomial(k, count, p)
        if cumulative <= tail:
            low = k + 1
        if before < 1.0 - tail <= cumulative and k + 1 <= count:
            high = k + 1
    return None if low is None or high is None else (low, high)


def _normal_ranks(count: int, p: float, z: float) -> tuple[int, int] | None:
    half = z * math.sqrt(count * p * (1.0 - p))
    low, high = math.floor(count * p - half), math.ceil(count * p + half) + 1
    return (low, high) if low >= 1 and high <= count else None


def student_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution, by its expansion around the normal one.

    Within 0.2 % from 4 degrees on; tabulated below. Source: Abramowitz and Stegun, 26.7.5.
    """
    if degrees in FEW_DEGREES:
        return FEW_DEGREES[degrees]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160.0,
    )
    return z + math.fsum(term / float(degrees) ** (i + 1) for i, term in enumerate(terms))


def _binomial(k: int, n: int, p: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    average = _mean(values)
    return math.sqrt(math.fsum((v - average) ** 2 for v in values) / (len(values) - 1))
