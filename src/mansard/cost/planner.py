"""The planner: what it takes to serve a model, why, and what would change it.

`answer` searches the candidates of a `Question`, takes the best that keeps every limit, and gathers what a person wants
to see of it: the ledger, the batch table, the phases on the roofline, the levers, what was rejected. No clock, no
files, no printing: presentation is `mansard.planning`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from mansard.cost.deployment import Deployment, Option, Pricer, percentiles
from mansard.cost.levers import Lever, fixes, levers
from mansard.cost.memory import Ledger
from mansard.cost.pareto import TradeOff, by_cost, by_device, trade_offs
from mansard.cost.phases import Phase, phases
from mansard.cost.pick import Pick
from mansard.cost.question import Question
from mansard.cost.search import Found, Rejected, first_exact, search
from mansard.cost.serving import ServingEstimate

TABLE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # concurrencies of the batch table


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The deployment at one load. Latencies are means; `*_at_percentile` are the service level's percentile.

    Units: seconds; output tokens per second; shares of the peak; US dollars per million output tokens; joules.
    """

    concurrency: float
    ttft_s: float
    tpot_s: float
    ttft_at_percentile_s: float
    tpot_at_percentile_s: float
    output_tokens_per_s: float
    tokens_per_s_per_user: float
    mbu: float
    mfu: float
    usd_per_million_tokens: float | None
    joules_per_token: float | None
    limit: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer. `chosen` is None when nothing keeps the limits; then `fixes` name single changes that would."""

    question: Question
    chosen: Pick | None
    estimate: ServingEstimate | None
    ledger: Ledger | None
    table: tuple[BatchRow, ...]
    phases: tuple[Phase, ...]
    levers: tuple[Lever, ...]
    fixes: tuple[str, ...]
    ranked: tuple[Pick, ...]
    rejected: tuple[Rejected, ...]
    frontier_device: tuple[TradeOff, ...]
    frontier_cost: tuple[TradeOff, ...]
    closest: Rejected | None = None

    @property
    def fits(self) -> bool:
        """Say whether an option keeps every limit."""
        return self.chosen is not None

    @property
    def alternatives(self) -> tuple[Pick, ...]:
        """Return the other options, best first, each split and format once."""
        seen = {_kind(self.chosen.deployment)} if self.chosen else set()
        found = []
        for option in self.ranked:
            kind = _kind(option.deployment)
            if kind not in seen:
                seen.add(kind)
                found.append(option)
        return tuple(found)

    @property
    def deployment(self) -> Deployment | None:
        """Return the chosen deployment."""
        return None if self.chosen is None else self.chosen.deployment


def _kind(d: Deployment) -> tuple[object, ...]:
    """Return what tells one option from another in a list: not its token budget or memory fraction."""
    return d.hardware.name, d.layout, d.weights, d.kv, d.engine


def answer(question: Question, detail: bool = False) -> Plan:
    """Return the plan for `question`; `detail` adds every op to the phases.

    Raises: ValueError for an unknown engine or format.
    """
    pricer = Pricer(question)
    found = search(question, pricer)
    best = first_exact(question, pricer, found)
    points = trade_offs(found.options)
    if best is None:
        return _no_answer(question, pricer, found, points)
    chosen, estimate = best
    one = replace(chosen.deployment, num_replicas=1)
    each = max(1.0, chosen.concurrency / chosen.deployment.num_replicas)
    return Plan(
        question=question,
        chosen=chosen,
        estimate=estimate,
        ledger=chosen.option.ledger,
        table=batch_table(question, pricer, chosen),
        phases=phases(pricer, one, each, detail),
        levers=levers(question, pricer, chosen),
        fixes=(),
        ranked=found.ranked,
        rejected=found.rejected,
        frontier_device=by_device(points),
        frontier_cost=by_cost(points),
    )


def _no_answer(question: Question, pricer: Pricer, found: Found, points: tuple[TradeOff, ...]) -> Plan:
    closest = closest_rejected(found.rejected)
    advice = fixes(question, pricer, closest.option.deployment) if closest else ()
    return Plan(
        question, None, None, closest.option.ledger if closest else None, (), (), (), advice, found.ranked,
        found.rejected, by_device(points), by_cost(points), closest,
    )  # fmt: skip


def closest_rejected(rejected: tuple[Rejected, ...]) -> Rejected | None:
    """Return the rejected option that came nearest: slow rather than too large, too large by the least share."""

    def distance(item: Rejected) -> tuple[int, float]:
        option = item.option
        if option.curve is not None and option.tpot_s is not None:
            return 0, float(option.tpot_s[0])
        if option.ledger is not None:
            return 1, option.ledger.weights_total.best / option.ledger.budget_bytes
        return 2, 0.0

    return min(rejected, key=distance, default=None)


def batch_table(question: Question, pricer: Pricer, chosen: Pick) -> tuple[BatchRow, ...]:
    """Return the deployment at round loads up to what it holds, the chosen load among them."""
    option, replicas = chosen.option, chosen.deployment.num_replicas
    each = max(1.0, chosen.concurrency / replicas)
    loads = sorted({*(float(c) for c in TABLE if c < option.max_running), float(option.max_running), each})
    grid, one = np.array(loads), replace(chosen.deployment, num_replicas=1)
    found = pricer.estimate(one, grid, option.capacity_tokens)
    ttft, tpot = percentiles(question, one, found)
    hourly = chosen.deployment.usd_per_hour

    def at(values: object, i: int) -> float:
        return float(np.broadcast_to(cast("float", values), grid.shape)[i])

    rows = []
    for i, load in enumerate(loads):
        rate = at(found.output_tokens_per_s.best, i) * replicas
        rows.append(
            BatchRow(
                concurrency=load * replicas,
                ttft_s=at(found.ttft_s.best, i),
                tpot_s=at(found.tpot_s.best, i),
                ttft_at_percentile_s=at(ttft, i),
                tpot_at_percentile_s=at(tpot, i),
                output_tokens_per_s=rate,
                tokens_per_s_per_user=1.0 / at(found.tpot_s.best, i),
                mbu=at(found.mbu, i),
                mfu=at(found.mfu, i),
                usd_per_million_tokens=None if hourly is None else hourly / 3600.0 / rate * 1e6,
                joules_per_token=None if found.joules_per_token is None else at(found.joules_per_token, i),
                limit=_row_limit(question, option, load, at(ttft, i), at(tpot, i)),
                chosen=load == each,
            )
        )
    return tuple(rows)


def _row_limit(question: Question, option: Option, load: float, ttft_s: float, tpot_s: float) -> str:
    """Return what ends the admissible range at this load: a latency, or the cache at the last row."""
    slo = question.limits
    over = {
        "TTFT": ttft_s / slo.ttft_s if slo.ttft_s is not None else 0.0,
        "TPOT": tpot_s / slo.tpot_s if slo.tpot_s is not None else 0.0,
    }
    worst = max(over, key=lambda metric: over[metric])
    if over[worst] > 1.0:
        return worst
    if load < option.max_running:
        return ""
    full = option.max_running >= option.deployment.num_seqs * option.deployment.layout.data_parallel
    return "max_num_seqs" if full else "KV cache"
