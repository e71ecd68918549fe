"""Percentiles and intervals against NumPy and against what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.bench.statistics import Estimate, describe, interval_ranks, percentile, student_quantile

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(values, st.floats(0.0, 100.0))
def test_percentiles_are_numpys(sample: list[float], q: float) -> None:
    # Both interpolate between the same two order statistics; the products are rounded differently.
    assert percentile(sorted(sample), q).value == pytest.approx(np.percentile(sample, q), rel=1e-9, abs=1e-6)


@given(st.lists(st.floats(0.0, 1e3), min_size=2, max_size=300), st.sampled_from([50.0, 90.0, 99.0]))
def test_an_interval_holds_its_estimate(sample: list[float], q: float) -> None:
    found = percentile(sorted(sample), q)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value + 1e-9 and found.value <= found.high + 1e-9


@pytest.mark.parametrize(("count", "p"), [(30, 0.5), (100, 0.9), (500, 0.99), (6000, 0.95)])
def test_the_interval_covers_the_true_quantile_as_often_as_it_says(count: int, p: float) -> None:
    ranks = interval_ranks(count, p)
    assert ranks is not None
    sample = np.sort(np.random.default_rng(5).random((4000, count)), axis=1)  # the p-quantile of uniform numbers is p
    covered = ((sample[:, ranks[0] - 1] <= p) & (p <= sample[:, ranks[1] - 1])).mean()
    # At least 95 % by construction; 4,000 trials have a standard error of 0.35 %.
    assert covered > 0.95 - 4 * 0.0035


def test_a_small_sample_has_no_interval_at_its_tail() -> None:
    assert interval_ranks(367, 0.99) is None and interval_ranks(368, 0.99) is not None
    assert percentile([1.0, 2.0], 99).low is None
    assert describe([]) is None


def test_students_quantile_is_the_tabulated_one() -> None:
    for degrees, expected in ((1, 12.706), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student_quantile(degrees) == pytest.approx(expected, rel=2e-3)


def test_a_distribution_describes_its_sample() -> None:
    found = describe([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.count, found.mean.value, found.minimum, found.maximum) == (4, 2.5, 1.0, 4.0)
    assert found.std == pytest.approx(math.sqrt(5 / 3))
    assert found.mean.low == pytest.approx(2.5 - 3.182 * math.sqrt(5 / 3) / 2)
    assert found.percentile(50).value == 2.5


def test_intervals_overlap_or_do_not() -> None:
    assert Estimate(1, 0, 2).overlaps(Estimate(3, 2, 4)) is True
    assert Estimate(1, 0, 2).overlaps(Estimate(4, 3, 5)) is False
    assert Estimate(1).overlaps(Estimate(4, 3, 5)) is None
