"""How long ranks take to exchange data: a latency that does not shrink, and bytes over the link.

A small all-reduce is one pass in which every rank reads all others' messages, (n − 1) of them; a large one is two
passes (reduce-scatter, all-gather) of (n − 1)/n of the message each, and two latencies. Engines choose the shorter. Two
all-reduces a layer at a few microseconds each are why doubling the GPUs does not halve the latency.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section
4.3; one-shot and two-shot kernels of TensorRT-LLM and vLLM; constants fitted to measured all-reduces (see
docs/cost-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.cost.shape import Number, smallest
from mansard.specs.hardware import HardwareSpec


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """How one kind of link performs: seconds a pass takes for no bytes, and the share of the link it reaches.

    `latency_s` counts once a pass, `rank_latency_s` once more for each rank beyond two.
    """

    latency_s: float
    rank_latency_s: float
    bus_efficiency: float
    source: str = ""


def collective_time(
    collective: str,
    message_bytes: Number,
    num_ranks: int,
    hardware: HardwareSpec,
    constants: LinkConstants,
    launches: Number = 1.0,
) -> Number:
    """Return how long one collective over `num_ranks` ranks takes.

    Units: bytes in, seconds out; `message_bytes` is what one rank holds (all-reduce) or sends (others).
    """
    if num_ranks <= 1:
        return 0.0 * message_bytes
    link = hardware.link_between(num_ranks)
    latency = constants.latency_s + constants.rank_latency_s * max(0, num_ranks - 2)
    message_s = message_bytes / (max(1.0, link.bytes_per_s) * constants.bus_efficiency)
    share = (num_ranks - 1.0) / num_ranks
    if collective == "all_reduce":
        return smallest(latency + (num_ranks - 1.0) * message_s, 2.0 * latency + 2.0 * share * message_s)
    return launches * latency + (1.0 if collective == "send" else share) * message_s
