"""Energy: what a step draws, from the board's power limit and how busy its compute and memory are.

Power rises from idle with the busier of the two: streaming memory at full bandwidth draws about three quarters of the
board limit, matrix units at the rate their kernels reach draw all of it. A guide, not a meter: no published power log
was fitted, so the result carries a wide interval.

Sources: linear power model, Fan, Weber, Barroso (ISCA 2007); POLCA (arXiv 2308.12908), figs. 4 and 5: prompts reach the
board limit, token generation stays at 60 to 70 % of it.
"""

from __future__ import annotations

from mansard.cost.shape import Number, largest, smallest
from mansard.specs.hardware import HardwareSpec

IDLE_SHARE = 0.15  # of the board limit, powered on and idle (H100: 70 to 110 W of 700 W)
MEMORY_SHARE = 0.75  # of the rise above idle at full memory bandwidth
COMPUTE_EFFICIENCY = 0.7  # share of the peak FLOP/s at which the board limit is reached
UNCERTAINTY = 0.35  # of a prediction, either way


def power_w(hardware: HardwareSpec, mbu: Number, mfu: Number) -> Number | None:
    """Return the mean power of one device at these shares of peak bandwidth and FLOP/s; None without a known limit.

    Units: watts.
    """
    if hardware.tdp_w is None:
        return None
    busy = smallest(largest(MEMORY_SHARE * mbu, mfu / COMPUTE_EFFICIENCY), 1.0)
    return hardware.tdp_w * (IDLE_SHARE + (1.0 - IDLE_SHARE) * busy)


def joules_per_token(
    hardware: HardwareSpec, num_devices: int, mbu: Number, mfu: Number, tokens_per_s: Number
) -> Number | None:
    """Return the energy of one output token over all devices; host, fans and cooling are not counted.

    Units: joules.
    """
    power = power_w(hardware, mbu, mfu)
    return None if power is None else num_devices * power / tokens_per_s
