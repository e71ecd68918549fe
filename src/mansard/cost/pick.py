"""Pick: the load an option runs at, how many replicas it takes, and what that costs.

The service level admits a range of loads; within it the objective decides: as many requests at once as it allows
(cheapest, fewest) or as few (fastest). A given rate or concurrency decides the number of replicas instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from mansard.cost.deployment import Deployment, Option, Pricer, percentiles
from mansard.cost.options import slo_limit
from mansard.cost.question import MAX_FLEET, Question
from mansard.cost.serving import ServingEstimate

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pick:
    """An option at the load it was picked for. `concurrency` and rates are of all replicas together.

    Units: seconds; tokens and requests per second; US dollars per million output tokens and per hour; joules.
    """

    option: Option
    deployment: Deployment
    concurrency: float
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    usd_per_million_tokens: float | None
    meets_slo: bool
    limit: str | None = None

    @property
    def tokens_per_s_per_user(self) -> float:
        """Return what one user sees at the percentile: 1 / TPOT."""
        return 1.0 / self.tpot_s

    @property
    def tokens_per_s_per_device(self) -> float:
        """Return output tokens per second of one device."""
        return self.output_tokens_per_s / self.deployment.num_devices


def admissible(question: Question, option: Option) -> NDArray[np.bool_]:
    """Return which concurrencies of the grid keep the limits: the first ones, up to the first that breaks one."""
    assert option.ttft_s is not None and option.tpot_s is not None
    slo = question.limits
    kept = np.ones(option.ttft_s.shape, dtype=bool)
    if slo.ttft_s is not None:
        kept &= option.ttft_s <= slo.ttft_s
    if slo.tpot_s is not None:
        kept &= option.tpot_s <= slo.tpot_s
    return cast("NDArray[np.bool_]", np.logical_and.accumulate(kept))


def pick(question: Question, option: Option) -> Pick | None:
    """Return the option at its load, or None when its own limit already rules it out."""
    if option.limit is not None or option.grid is None or option.curve is None:
        return None
    kept = admissible(question, option) if question.slo or not question.has_load else np.ones(option.grid.shape, bool)
    count = max(1, int(kept.sum()))
    if question.has_load:
        return _at_load(question, option, count)
    alone = question.objective == "fastest" or not kept[0]
    load = float(option.grid[0]) if alone else most_requests(question, option, count)
    return _at(option, load, _replicas(question, option) or 1, bool(kept[0]))


def most_requests(question: Question, option: Option, count: int) -> float:
    """Return the most requests at once that keep the limits: between the grid's last good load and its first bad one.

    Rounded down to two significant digits, as a limit that a person would set.
    """
    assert option.grid is not None and option.ttft_s is not None and option.tpot_s is not None
    low = float(option.grid[count - 1])
    if count == len(option.grid):
        return low
    high, slo = float(option.grid[count]), question.limits
    crossing = high
    for limit, values in ((slo.ttft_s, option.ttft_s), (slo.tpot_s, option.tpot_s)):
        below, above = float(values[count - 1]), float(values[count])
        if limit is not None and below <= limit < above:
            crossing = min(crossing, low + (high - low) * (limit - below) / (above - below))
    step = 10.0 ** max(0, len(str(int(crossing))) - 2)
    return max(low, crossing // step * step)


def _replicas(question: Question, option: Option) -> int | None:
    fixed = question.num_devices
    return None if fixed is None else fixed // option.deployment.layout.num_ranks


def _at_load(question: Question, option: Option, count: int) -> Pick:
    """Return the option with the replicas that a rate or a concurrency needs, each within the first `count` loads."""
    assert option.grid is not None and option.curve is not None
    rates = np.maximum.accumulate(option.curve.output_tokens_per_s / question.output_tokens)
    rate, users = question.workload.rate_req_s, question.workload.concurrency
    most = float(rates[count - 1]) if rate is not None else float(option.grid[count - 1])
    asked = rate if rate is not None else float(users or 1)
    fixed = _replicas(question, option)
    replicas = fixed or max(1, math.ceil(asked / most - 1e-9))
    share = asked / replicas
    unit = "req/s" if rate is not None else "requests at once"
    limit = None
    if share > most * (1 + 1e-9):
        limit = f"{replicas * option.deployment.layout.num_ranks} devices serve {most * replicas:,.4g} {unit}"
        limit += f" within the limits; {asked:,.4g} are asked for"
    elif replicas * option.deployment.layout.num_ranks > MAX_FLEET:
        limit = (
            f"{replicas * option.deployment.layout.num_ranks:,} devices are needed; at most {MAX_FLEET:,} are planned"
        )
    if rate is not None:
        share = float(np.interp(share, rates[:count], option.grid[:count])) if count > 1 else float(option.grid[0])
        share = min(share, float(option.grid[0]) * asked / replicas / float(rates[0])) if share <= 1.0 else share
    return _at(option, max(share, 1.0 if rate is None else 1e-3), replicas, limit is None, limit)


def _at(option: Option, concurrency: float, replicas: int, meets: bool, limit: str | None = None) -> Pick:
    """Return the option read off its curve at `concurrency` requests of one replica."""
    assert option.grid is not None and option.curve is not None
    assert option.ttft_s is not None and option.tpot_s is not None
    deployment = replace(option.deployment, num_replicas=replicas)

    grid = option.grid
    tokens = float(np.interp(concurrency, grid, option.curve.output_tokens_per_s)) * replicas * min(1.0, concurrency)
    hourly = deployment.usd_per_hour
    cost = None if hourly is None else hourly / 3600.0 / tokens * 1e6
    return Pick(
        option,
        deployment,
        concurrency * replicas,
        float(np.interp(concurrency, grid, option.ttft_s)),
        float(np.interp(concurrency, grid, option.tpot_s)),
        tokens,
        cost,
        meets,
        limit,
    )


def exact(question: Question, pricer: Pricer, picked: Pick) -> tuple[Pick, ServingEstimate]:
    """Return the pick with its numbers computed at its very load instead of read off the grid, and the estimate."""
    one = replace(picked.deployment, num_replicas=1)
    replicas, option = picked.deployment.num_replicas, picked.option
    each = max(1.0, picked.concurrency / replicas)
    found = pricer.estimate(one, each, option.capacity_tokens)
    ttft, tpot = (float(cast("float", x)) for x in percentiles(question, one, found))
    tokens = float(cast("float", found.output_tokens_per_s.best)) * replicas * min(1.0, picked.concurrency / replicas)
    hourly = picked.deployment.usd_per_hour
    limit = picked.limit
    if question.slo is not None and limit is None:
        limit = slo_limit(question.slo, ttft, tpot, f"{each:,.4g} requests at once")
    return (
        replace(
            picked,
            ttft_s=ttft,
            tpot_s=tpot,
            output_tokens_per_s=tokens,
            usd_per_million_tokens=None if hourly is None else hourly / 3600.0 / tokens * 1e6,
            meets_slo=question.limits.is_met(ttft, tpot),
            limit=limit,
        ),
        found,
    )
