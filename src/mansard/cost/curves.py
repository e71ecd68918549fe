"""Curves: how replicas serve every load of a grid, many deployments in one call.

Deployments that differ only in rates (FLOP/s, bytes/s), capacity and load are priced as one with a column for each: the
whole catalogue then costs a hundred calls instead of a thousand. What is compared element by element in the cost model
(families of kernels, links, formats) must be equal within a stack.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mansard.cost.roofline import PricedProgram
from mansard.cost.steady_state import Load, serve
from mansard.specs.hardware import HardwareSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Curve:
    """One replica over its grid of concurrencies. Units: seconds; requests; output tokens per second."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    itl_s: NDArray[np.float64]
    queue_s: NDArray[np.float64]
    running: NDArray[np.float64]
    output_tokens_per_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Served:
    """A program prepared for one deployment, the loads to price and the cache of one data-parallel rank in tokens."""

    priced: PricedProgram
    grid: NDArray[np.float64]
    capacity_tokens: float

    @property
    def key(self) -> Hashable:
        """Return what must be equal for two to be priced together."""
        priced, layout = self.priced, self.priced.layout
        joined = {layout.tensor_parallel, layout.tensor_parallel * layout.data_parallel, layout.num_ranks}
        links = tuple(priced.hardware.link_between(n) for n in sorted(joined) if n > 1)
        return layout, links, id(priced.profile.family), priced.profile.engine, repr(priced.formats)


def curves(served: Sequence[Served], load: Load) -> list[Curve]:
    """Return the curve of each, in order; concurrency and capacity of `load` are theirs."""
    stacks: dict[Hashable, list[int]] = {}
    for i, item in enumerate(served):
        stacks.setdefault(item.key, []).append(i)
    found: dict[int, Curve] = {}
    for members in stacks.values():
        found |= dict(zip(members, _stack([served[i] for i in members], load), strict=True))
    return [found[i] for i in range(len(served))]


def _stack(members: Sequence[Served], load: Load) -> list[Curve]:
    """Price equal deployments together: a row each, short grids padded with their last load."""
    width = max(len(m.grid) for m in members)
    grid = np.stack([np.pad(m.grid, (0, width - len(m.grid)), mode="edge") for m in members])
    capacity = np.array([m.capacity_tokens for m in members])[:, None]
    together = copy.copy(members[0].priced)
    together.hardware = _column_hardware([m.priced.hardware for m in members], together)
    ranks = float(together.layout.data_parallel)
    found = serve(together, replace(load, concurrency=grid, capacity_tokens=capacity))
    values = (found.ttft_s, found.tpot_s, found.itl_s, found.queue_s, found.running * ranks, found.output_tokens_per_s)
    rows = [np.broadcast_to(v, grid.shape) for v in values]
    return [Curve(*(row[i, : len(m.grid)] for row in rows)) for i, m in enumerate(members)]


def _column_hardware(items: Sequence[HardwareSpec], priced: PricedProgram) -> HardwareSpec:
    """Return the first hardware with the rates of all in columns, which NumPy then broadcasts over loads."""
    rates = {part.rate for part in priced.formats.parts.values()} | {items[0].matmul_dtype}
    changed: dict[str, Any] = {
        "flops": {rate: np.array([h.peak_flops(rate) for h in items])[:, None] for rate in rates},
        "memory_bytes_per_s": np.array([h.memory_bytes_per_s for h in items])[:, None],
    }
    return replace(items[0], **changed)
