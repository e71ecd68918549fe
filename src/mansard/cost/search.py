"""Search: every candidate evaluated, the admissible ones ranked by the objective, the others with their first limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mansard.cost.candidates import NODE, deployments
from mansard.cost.deployment import Deployment, Option, Pricer
from mansard.cost.options import evaluate_all
from mansard.cost.pick import Pick, exact, pick
from mansard.cost.question import Question
from mansard.cost.serving import ServingEstimate

BUDGETS = (512, 2048, 8192, 16_384)  # tokens of a step
FOLLOWERS = 5  # options that a budget found for the best is tried on
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
    if question.spec.moe is None and question.objective != "fastest" and question.max_devices > NODE:
        small = _ranked(replace(question, max_devices=NODE), pricer)
        if small.ranked:  # a dense model that one host holds gains nothing from a second host but speed
            return _with_budgets(question, pricer, small)
    return _with_budgets(question, pricer, _ranked(question, pricer))


def _ranked(question: Question, pricer: Pricer) -> Found:
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
    return Found(options, tuple(ranked), tuple(rejected))


def _with_budgets(question: Question, pricer: Pricer, found: Found) -> Found:
    """Return the outcome with other token budgets, where a service level makes them matter.

    A smaller budget interrupts decodes for less long, a larger one finishes prompts sooner. The best option is
    tried with each; what suits it is then tried on those that follow. The default stays unless another is better by
    a percent.
    """
    if question.slo is None or question.num_batched_tokens is not None or not found.ranked:
        return found
    best = found.ranked[0]
    base = best.option.deployment
    others = [replace(base, num_batched_tokens=n) for n in BUDGETS if n != base.num_batched_tokens]
    better = _better(question, pricer, [(d, best) for d in others])
    if better:
        budget = min(better, key=ORDER[question.objective]).deployment.num_batched_tokens
        next_ones = [(replace(p.option.deployment, num_batched_tokens=budget), p) for p in found.ranked[1:FOLLOWERS]]
        better += _better(question, pricer, next_ones)
    ranked = sorted((*better, *found.ranked), key=ORDER[question.objective])
    return Found((*found.options, *(p.option for p in better)), tuple(ranked), found.rejected)


def _better(question: Question, pricer: Pricer, tried: list[tuple[Deployment, Pick]]) -> list[Pick]:
    """Return the picks of the deployments tried that are better than the pick each is to replace."""
    options = evaluate_all(question, pricer, (deployment for deployment, _ in tried))
    picks = [(pick(question, option), old) for option, (_, old) in zip(options, tried, strict=True)]
    return [new for new, old in picks if new is not None and new.limit is None and _is_better(new, old)]


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
