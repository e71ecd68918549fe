"""Sweeps: many experiments at once, over processes or a Ray cluster, and the search for the highest rate.

Each experiment is a value and its simulation is deterministic, so results do not depend on where or in which order
they run. Ray is an extra (`pip install "mansard[ray]"`) and only imported when an address is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from mansard.sim.experiment import Experiment
from mansard.sim.summary import Summary

MAX_DOUBLINGS = 20


def run_all(
    experiments: Sequence[Experiment], num_workers: int = 1, ray_address: str | None = None
) -> Iterator[tuple[Experiment, Summary]]:
    """Yield each experiment with its summary, in the given order.

    Raises: ValueError as the experiments do; ImportError when Ray is asked for and missing.
    """
    if ray_address is not None:
        yield from zip(experiments, _on_ray(experiments, ray_address), strict=True)
    elif num_workers <= 1 or len(experiments) <= 1:
        for experiment in experiments:
            yield experiment, experiment.summary()
    else:
        with ProcessPoolExecutor(min(num_workers, len(experiments)), mp_context=get_context("spawn")) as pool:
            yield from zip(experiments, pool.map(_summary, experiments), strict=True)


def highest_rate(
    experiment: Experiment,
    low: float = 0.05,
    tolerance: float = 0.02,
    on_probe: Callable[[float, Summary], None] | None = None,
) -> tuple[float, Summary] | None:
    """Return the highest rate, to `tolerance`, at which the experiment meets its SLO, with its summary there.

    Doubles from `low` until the SLO is missed, then halves the interval in the logarithm. None when even `low` misses
    it. It takes the SLO to be missed at all higher rates once it is missed.

    Units: requests per second. Raises: ValueError when the experiment has no SLO.
    """
    slo = experiment.slo
    if slo is None:
        raise ValueError("the search for a rate needs a service level, for example ttft=450ms,tpot=40ms,p99")

    def probe(rate: float) -> Summary:
        summary = experiment.at_rate(rate).summary()
        if on_probe is not None:
            on_probe(rate, summary)
        return summary

    best = probe(low)
    if not best.meets(slo):
        return None
    high = low
    for _ in range(MAX_DOUBLINGS):
        high *= 2.0
        found = probe(high)
        if not found.meets(slo):
            break
        low, best = high, found
    while high / low > 1.0 + tolerance:
        middle = float((low * high) ** 0.5)
        found = probe(middle)
        if found.meets(slo):
            low, best = middle, found
        else:
            high = middle
    return low, best


def _summary(experiment: Experiment) -> Summary:
    return experiment.summary()


def _on_ray(experiments: Sequence[Experiment], address: str) -> list[Summary]:
    """Run each experiment as a Ray task."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ImportError('Ray is not installed (pip install "mansard[ray]", or leave out --ray)') from error
    ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    task = ray.remote(_summary)
    found: list[Summary] = ray.get([task.remote(experiment) for experiment in experiments])
    return found
