"""How long ranks take to exchange data: a latency that does not shrink, and bytes over the bus bandwidth.

Ring and tree algorithms move 2(n−1)/n of the message over every rank's link in an all-reduce, (n−1)/n in an
all-gather or all-to-all. Two all-reduces a layer at a few microseconds each are why doubling the GPUs does
not halve the latency.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
§4.3; latency and bus efficiency fitted to measured all-reduces (see docs/cost-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.cost.shape import Number
from mansard.specs.hardware import HardwareSpec


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """How one kind of link performs: seconds a collective takes for no bytes, and the share of the link it
    reaches.

    `latency_s` counts once, `rank_latency_s` once more for each rank beyond two.
    """

    latency_s: float
    rank_latency_s: float
    bus_efficiency: float
    source: str = ""


# How often the message passes over a link.
TRAFFIC = {"all_reduce": 2.0, "all_gather": 1.0, "all_to_all": 1.0, "send": 1.0, "none": 0.0}


def collective_time(
    collective: str, message_bytes: Number, num_ranks: int, hardware: HardwareSpec, constants: LinkConstants,
    launches: Number = 1.0,
) -> Number:
    """Return how long one collective over `num_ranks` ranks takes.

    Units: bytes in, seconds out; `message_bytes` is what one rank holds (all-reduce) or sends (others).
    """
    if num_ranks <= 1:
        return 0.0 * message_bytes
    link = hardware.link_between(num_ranks)
    share = 1.0 if collective == "send" else (num_ranks - 1.0) / num_ranks
    latency = constants.latency_s + constants.rank_latency_s * max(0, num_ranks - 2)
    bandwidth = max(1.0, link.bytes_per_s) * constants.bus_efficiency
    return launches * latency + TRAFFIC[collective] * share * message_bytes / bandwidth
