"""Pareto: the options that nothing else beats in every respect.

Users see tokens per second each, owners tokens per second and device, payers dollars per million tokens. A point is
kept when no other is at least as good in all and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.cost.deployment import Deployment, Option


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One option at one load. `usd_per_million_tokens` is None without a price."""

    deployment: Deployment
    concurrency: float
    tokens_per_s_per_user: float
    tokens_per_s_per_device: float
    usd_per_million_tokens: float | None


def trade_offs(options: Sequence[Option]) -> tuple[TradeOff, ...]:
    """Return every priced load of every option that has a curve and no limit."""
    found: list[TradeOff] = []
    for option in options:
        if option.limit is not None or option.curve is None or option.grid is None or option.tpot_s is None:
            continue
        devices = option.deployment.layout.num_ranks
        rates = option.curve.output_tokens_per_s
        hourly = option.deployment.usd_per_hour
        for load, tpot, rate in zip(option.grid, option.tpot_s, rates, strict=True):
            cost = None if hourly is None else hourly / 3600.0 / float(rate) * 1e6
            found.append(TradeOff(option.deployment, float(load), 1.0 / float(tpot), float(rate) / devices, cost))
    return tuple(found)


def by_device(points: Sequence[TradeOff]) -> tuple[TradeOff, ...]:
    """Return the frontier of tokens/s/user against tokens/s/device, most users' speed first."""
    return _frontier(points, [-p.tokens_per_s_per_device for p in points])


def by_cost(points: Sequence[TradeOff]) -> tuple[TradeOff, ...]:
    """Return the frontier of tokens/s/user against dollars per million tokens, of the options that have a price."""
    priced = [p for p in points if p.usd_per_million_tokens is not None]
    return _frontier(priced, [p.usd_per_million_tokens or 0.0 for p in priced])


def _frontier(points: Sequence[TradeOff], costs: Sequence[float]) -> tuple[TradeOff, ...]:
    """Return the points of which no other is as fast for a user and as cheap; both orders are kept strict."""
    order = sorted(range(len(points)), key=lambda i: (-points[i].tokens_per_s_per_user, costs[i]))
    kept: list[TradeOff] = []
    best = float("inf")
    for i in order:
        if costs[i] < best:
            kept.append(points[i])
            best = costs[i]
    return tuple(kept)
