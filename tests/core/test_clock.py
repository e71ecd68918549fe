"""Clocks: monotone, and the wall clock's source is handed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.clock import VirtualClock, WallClock


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=20))
def test_a_virtual_clock_never_goes_back(moves):
    clock = VirtualClock()
    for is_step, value in moves:
        before = clock.now()
        (clock.advance if is_step else clock.advance_to)(value)
        assert clock.now() >= before


@pytest.mark.parametrize("duration", [-1e-9, float("nan")])
def test_a_virtual_clock_refuses_to_go_back(duration):
    with pytest.raises(ValueError, match="at least 0"):
        VirtualClock().advance(duration)


def test_a_wall_clock_tells_its_source():
    assert WallClock(iter([1.5, 2.5]).__next__).now() == 1.5
