"""Search: every candidate evaluated, the admissible ones ranked by the objective, the others with their first limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mansard.cost.candidates import deployments
from mansard.cost.deployment import Option, Pricer
from mansard.cost.options import evaluate_all
from mansard.cost.pick import Pick, exact, pick
from mansard.cost.question import Question
from mansard.cost.serving import ServingEstimate

BUDGETS = (512, 1024, 2048, 4096, 8192, 16_384)  # tokens of a step
NOTABLE = 1.01
UNPRICED = float("inf")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that cannot answer, and the first limit it meets."""

    option: Option
    limit: str


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: `ranked` best first, `rejected` in the order they were tried."""

    options: tuple[Option, ...]
    ranked: tuple[Pick, ...]
    rejected: tuple[Rejected, ...]


def search(question: Question, pricer: Pricer | None = None) -> Found:
    """Return every candidate of `question`, ranked or rejected."""
    pricer = pricer or Pricer(question)
    options = evaluate_all(question, pricer, deployments(question))
    ranked: list[Pick] = []
    rejected: list[Rejected] = []
    for option in options:
        picked = pick(question, option)
        if picked is not None and picked.limit is None:
            ranked.append(picked)
        else:
            limit = option.limit or (picked.limit if picked else None) or "not priced"
            rejected.append(Rejected(option, limit))
    ranked.sort(key=ORDER[question.objective])
    return _with_budgets(question, pricer, Found(options, tuple(ranked), tuple(rejected)))


def _with_budgets(question: Question, pricer: Pricer, found: Found) -> Found:
    """Return the outcome with other token budgets of the best option, where a service level makes them matter.

    A smaller budget interrupts decodes for less long, a larger one finishes prompts sooner. The default stays unless
    another is better by a percent.
    """
    if question.slo is None or question.num_batched_tokens is not None or not found.ranked:
        return found
    best = found.ranked[0]
    base = best.option.deployment
    others = [replace(base, num_batched_tokens=n) for n in BUDGETS if n != base.num_batched_tokens]
    options = evaluate_all(question, pricer, others)
    picks = [p for o in options if (p := pick(question, o)) is not None and p.limit is None and _is_better(p, best)]
    ranked = sorted((*picks, *found.ranked), key=ORDER[question.objective])
    return Found((*found.options, *(p.option for p in picks)), tuple(ranked), found.rejected)


def _is_better(other: Pick, best: Pick) -> bool:
    if other.deployment.num_devices != best.deployment.num_devices:
        return other.deployment.num_devices < best.deployment.num_devices
    return other.output_tokens_per_s > best.output_tokens_per_s * NOTABLE or other.tpot_s * NOTABLE < best.tpot_s


def first_exact(question: Question, pricer: Pricer, found: Found) -> tuple[Pick, ServingEstimate] | None:
    """Return the best pick that still keeps every limit when it is computed at its very load."""
    for picked in found.ranked:
        sharp, estimate = exact(question, pricer, picked)
        if sharp.limit is None:
            return sharp, estimate
    return None


def _cheapest(p: Pick) -> tuple[float, ...]:
    cost = p.usd_per_million_tokens
    return (not p.meets_slo, UNPRICED if cost is None else cost, -p.tokens_per_s_per_device, p.deployment.num_devices)


def _fewest(p: Pick) -> tuple[float, ...]:
    hourly = p.deployment.usd_per_hour
    return (not p.meets_slo, p.deployment.num_devices, UNPRICED if hourly is None else hourly, -p.output_tokens_per_s)


def _fastest(p: Pick) -> tuple[float, ...]:
    hourly = p.deployment.usd_per_hour
    return (p.tpot_s, p.deployment.num_devices, UNPRICED if hourly is None else hourly)


ORDER: dict[str, Callable[[Pick], tuple[float, ...]]] = {
    "cheapest": _cheapest,
    "fewest": _fewest,
    "fastest": _fastest,
}
