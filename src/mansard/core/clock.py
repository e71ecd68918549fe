"""Clocks: where the control plane's time comes from.

The scheduler is told the time and never asks for it. A real run reads the machine's clock; a simulated one
moves a `VirtualClock` by what each step costs. `core` imports no `time`: the wall clock's source is handed
in.
"""

from __future__ import annotations

from collections.abc import Callable


class WallClock:
    """Tells the time of a monotone source such as `time.perf_counter`."""

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source

    def now(self) -> float:
        """Return the source's time in seconds."""
        return self._source()


class VirtualClock:
    """Stands still until it is advanced; never goes back."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Let `duration_s` pass.

        Raises: ValueError when the duration is negative or not a number.
        """
        if not duration_s >= 0.0:
            raise ValueError(f"a clock cannot advance by {duration_s} s; the duration must be at least 0")
        self._now_s += duration_s

    def advance_to(self, time_s: float) -> None:
        """Move on to `time_s`, or stay when it has passed already."""
        self._now_s = max(self._now_s, time_s)
