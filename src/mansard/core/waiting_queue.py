"""WaitingQueue: sequences that hold no KV yet, the one to run next at the front.

One heap ordered by rank serves first-come-first-served and priorities alike, and puts a preempted sequence
back at its old place. Removal is lazy, so that a client who leaves costs O(1).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mansard.core.types import Sequence, SequenceStatus

_Entry = tuple[tuple[int, int], Sequence]


class WaitingQueue:
    """A heap by `Sequence.rank`; ranks are unique, so order never depends on anything else."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._num_live = 0

    def __len__(self) -> int:
        return self._num_live

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence at its rank."""
        heappush(self._heap, (sequence.rank, sequence))
        self._num_live += 1

    def peek(self) -> Sequence:
        """Return the sequence to run next; the queue must not be empty."""
        heap = self._heap
        while heap[0][1].status is not SequenceStatus.WAITING:
            heappop(heap)
        return heap[0][1]

    def pop(self) -> Sequence:
        """Take the sequence that `peek` shows."""
        sequence = self.peek()
        heappop(self._heap)
        self._num_live -= 1
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """Forget a queued sequence whose status was just changed to finished."""
        assert sequence.status is SequenceStatus.FINISHED
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is SequenceStatus.WAITING]
            heapify(self._heap)
