"""Tails: from mean latencies to those that a percentile of requests keeps.

A service level is a limit at a percentile, the closed form knows means. Three things spread requests: the wait in the
queue (an exponential tail), the length of one's own prompt, and how many of the others' prompts fall into one's own
output (a Poisson count). Independent spreads add in quadrature. None of this was fitted: a simulation is the better
judge of a tail, and the planner says so.

Source: exponential tail of the waiting time, Kingman (1962); normal approximation of a Poisson count.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from mansard.cost.shape import Number, largest


@functools.cache
def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile, by bisection on the error function.

    Raises: ValueError outside (0, 1).
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability {probability} must lie between 0 and 1")
    low, high = -10.0, 10.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        below = 0.5 * (1.0 + math.erf(middle / math.sqrt(2.0))) < probability
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2.0


def ttft_at(percentile: float, ttft_s: Number, queue_s: Number, prompt_ratio: float) -> Number:
    """Return the time to the first token that `percentile` % of requests keep.

    `prompt_ratio` is the prompt's length at that percentile over its mean. Units: seconds.
    """
    if percentile <= 50.0:
        return ttft_s
    waiting = queue_s * (math.log(100.0 / (100.0 - percentile)) - 1.0)
    own = (ttft_s - queue_s) * max(0.0, prompt_ratio - 1.0)
    return ttft_s + np.sqrt(largest(waiting, 0.0) ** 2 + own**2)


def tpot_at(percentile: float, tpot_s: Number, itl_s: Number, num_interruptions: Number) -> Number:
    """Return the time per output token that `percentile` % of requests keep.

    Between `itl_s` (no prompt interrupts) and `tpot_s` (the mean) lies what `num_interruptions` prompts cost on
    average; their count is Poisson. Units: seconds.
    """
    if percentile <= 50.0:
        return tpot_s
    spread = normal_quantile(percentile / 100.0) / np.sqrt(largest(num_interruptions, 1.0))
    return tpot_s + largest(tpot_s - itl_s, 0.0) * spread
