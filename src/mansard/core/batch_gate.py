"""BatchGate: when waiting sequences may join. The batching policies differ here and nowhere else.

- continuous: whenever a slot is free;
- static: a batch of those who wait, run to completion, then the next;
- dynamic: the same, but a batch waits until it is full or its window is over (as in NVIDIA Triton).
"""

from __future__ import annotations

from math import inf

from mansard.core.config import SchedulerConfig


class BatchGate:
    """Counts how many sequences the batch under way may still take in."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._is_continuous = config.policy == "continuous"
        self._batch_size = config.num_batch_seqs
        self._window_s = config.batch_window_s
        self._max_num_seqs = config.max_num_seqs
        self._members_to_come = 0
        self._opened_s = -inf

    def open_window(self, now: float) -> None:
        """Start the window: a first sequence waits."""
        self._opened_s = now

    def room(self, num_running: int, num_waiting: int, now: float) -> int:
        """Return how many sequences may join now, forming a batch when none runs and it may form."""
        free_slots = self._max_num_seqs - num_running
        if self._is_continuous:
            return free_slots
        if num_running == 0:
            forms = self.ready_at(num_waiting, now) <= now
            self._members_to_come = min(self._batch_size, num_waiting) if forms else 0
            if forms:
                self._opened_s = now  # for those who stay behind
        return min(free_slots, self._members_to_come)

    def ready_at(self, num_waiting: int, now: float) -> float:
        """Return when a batch may form, nothing running: now, or at the end of the window."""
        if num_waiting >= self._batch_size:
            return now
        return max(now, self._opened_s + self._window_s)

    def joined(self) -> None:
        """Count one member in."""
        self._members_to_come -= 1

    def expect(self) -> None:
        """Count on a member that went back to the queue; it waits for no window."""
        self._members_to_come += 1
        self._opened_s = -inf

    def close(self) -> None:
        """Let nobody join before the next batch: this one is what fits in the KV cache."""
        self._members_to_come = 0
