"""Timeline: what every step of a replica was, in few numbers.

Steps come in segments: one full step, or a stretch of decode steps taken at once. The end of every step is kept; batch
and cache are kept by segment. Between two segments a replica is idle.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of equal steps, described at its beginning.

    num_gaps: sequences that got a token and had got one in the step before, each step. num_context_tokens: keys of
    all decodes. num_used_blocks: after the segment.
    """

    start_s: float
    num_steps: int
    num_running: int
    num_waiting: int
    num_gaps: int
    num_decodes: int
    num_prefill_tokens: int
    num_context_tokens: int
    num_used_blocks: int
    num_preemptions: int


_NAMES = tuple(f.name for f in fields(Segment))


class Timeline:
    """The segments of one replica as columns, and the end of each step."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {name: array("d") for name in _NAMES}
        self._appends = [self._columns[name].append for name in _NAMES]
        self.step_ends_s: array[float] = array("d")
        self.long_gaps_s: array[float] = array("d")  # between two tokens of a sequence that was preempted between them

    def add(self, *values: float) -> None:
        """Append a segment, given as the values of `Segment` in their order; its step ends are appended apart."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def __len__(self) -> int:
        return len(self._columns["start_s"])

    @property
    def num_steps(self) -> int:
        """Return how many steps there were."""
        return len(self.step_ends_s)

    def column(self, name: str) -> Floats:
        """Return one column over segments, by the name of `Segment`'s field."""
        return np.array(self._columns[name])

    def segments(self) -> Iterator[tuple[Segment, Floats]]:
        """Yield each segment with the ends of its steps."""
        ends, position = np.array(self.step_ends_s), 0
        for values in zip(*(self._columns[name] for name in _NAMES), strict=True):
            segment = Segment(values[0], *(int(v) for v in values[1:]))
            yield segment, ends[position : position + segment.num_steps]
            position += segment.num_steps

    def durations_s(self) -> Floats:
        """Return how long each step took."""
        ends = np.array(self.step_ends_s)
        begins = np.concatenate([[0.0], ends[:-1]]) if len(ends) else ends
        counts = self.column("num_steps").astype(np.int64)
        begins[np.cumsum(counts) - counts] = self.column("start_s")
        durations: Floats = ends - begins
        return durations

    def by_step(self, name: str) -> Floats:
        """Return a column repeated for every step of its segment."""
        return np.repeat(self.column(name), self.column("num_steps").astype(np.int64))

    def gaps_s(self) -> tuple[Floats, Floats]:
        """Return the gaps between tokens and how often each occurred, in all sequences together."""
        gaps, counts = self.durations_s(), self.by_step("num_gaps")
        seen = counts > 0
        long = np.array(self.long_gaps_s)
        return np.concatenate([gaps[seen], long]), np.concatenate([counts[seen], np.ones(len(long))])
