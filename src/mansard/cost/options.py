"""Evaluate a deployment: walk the limits in the order an engine would meet them, and stop at the first.

Engine, formats, split, memory, context, then latency under the service level; each limit is one sentence with its
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from mansard.cost.curves import Curve, Served, curves
from mansard.cost.deployment import (
    Deployment,
    Option,
    Pricer,
    base_load,
    grid_up_to,
    percentiles,
    requests_held,
)
from mansard.cost.engine_support import engine_problem
from mansard.cost.memory import Ledger, safe_fraction
from mansard.cost.parallelism import layout_problems
from mansard.cost.question import Question
from mansard.specs.number_formats import support
from mansard.specs.precision import kv_cache_format, number_format
from mansard.specs.slo import Slo


def evaluate(question: Question, pricer: Pricer, deployment: Deployment) -> Option:
    """Return the option with its curve, or with the first limit that rules it out."""
    return evaluate_all(question, pricer, (deployment,))[0]


def evaluate_all(question: Question, pricer: Pricer, deployments: Iterable[Deployment]) -> tuple[Option, ...]:
    """Return the option of every deployment, in order; those that start are priced together."""
    options = [prepare(question, pricer, d) for d in deployments]
    by_engine: dict[str, list[int]] = {}
    for i, option in enumerate(options):
        if option.limit is None:
            by_engine.setdefault(option.deployment.engine, []).append(i)
    for engine, members in by_engine.items():
        served = [_served(pricer, options[i]) for i in members]
        for i, curve in zip(members, curves(served, base_load(question, engine)), strict=True):
            options[i] = _with_curve(question, options[i], curve)
    return tuple(options)


def prepare(question: Question, pricer: Pricer, deployment: Deployment) -> Option:
    """Return the option with its ledger and the loads it can hold, not yet priced."""
    limit = static_limit(question, deployment)
    if limit is not None:
        return Option(deployment, limit)
    deployment, result = _started(question, pricer, deployment)
    if result.problems:
        return Option(deployment, result.problems[0], result)
    held = requests_held(question, deployment, result)
    most = int(min(held, deployment.num_seqs) * deployment.layout.data_parallel)
    capacity = held * (question.input_tokens + question.output_tokens)
    return Option(deployment, None, result, max(1, most), grid_up_to(most), capacity)


def _served(pricer: Pricer, option: Option) -> Served:
    assert option.grid is not None
    return Served(pricer.priced(option.deployment), option.grid, option.capacity_tokens)


def _with_curve(question: Question, option: Option, curve: Curve) -> Option:
    ttft, tpot = (np.asarray(x) for x in percentiles(question, option.deployment, curve))
    slo = question.slo
    limit = None if slo is None else slo_limit(slo, float(ttft[0]), float(tpot[0]))
    return replace(option, limit=limit, curve=curve, ttft_s=ttft, tpot_s=tpot)


def _started(question: Question, pricer: Pricer, deployment: Deployment) -> tuple[Deployment, Ledger]:
    """Return the ledger, with the memory fraction lowered where the default leaves too little beside the cache."""
    result = pricer.ledger(deployment)
    safe = math.floor(100.0 * safe_fraction(result)) / 100.0
    if not result.problems or question.memory_fraction is not None or not 0.0 < safe < deployment.fraction:
        return deployment, result
    if result.kv.best <= 0.0:
        return deployment, result
    lower = replace(deployment, fraction=safe)
    return lower, pricer.ledger(lower)


def static_limit(question: Question, deployment: Deployment) -> str | None:
    """Return the first limit that needs no pricing: engine, formats, split."""
    hardware = deployment.hardware
    found = question.problem or engine_problem(deployment.engine, hardware, deployment.layout)
    if found:
        return found
    for what, name in (("weights", deployment.weights), ("a KV cache", deployment.kv)):
        if support(hardware, name) == "none":
            return f"{hardware.name} cannot use {what} in {name}"
    problem = _cache_problem(question, deployment.kv)
    if problem is not None:
        return problem
    group = number_format(deployment.weights).block_size if deployment.weights.startswith("int4") else None
    problems = layout_problems(question.spec, deployment.layout, group)
    return problems[0] if problems else None


def _cache_problem(question: Question, kv: str) -> str | None:
    """Return why a head cannot be cached in this format, or None."""
    mla = question.spec.mla
    width = mla.kv_lora_rank + mla.qk_rope_head_dim if mla is not None else question.spec.head_dim
    try:
        kv_cache_format(kv, width)
    except ValueError as error:
        return str(error)
    return None


def slo_limit(slo: Slo, ttft_s: float, tpot_s: float, load: str = "1 request at a time") -> str | None:
    """Return which latency breaks the service level, or None."""
    at = f"p{slo.percentile:g}"
    if slo.ttft_s is not None and ttft_s > slo.ttft_s:
        return f"TTFT {at} is {ttft_s * 1e3:,.0f} ms with {load}; the limit is {slo.ttft_s * 1e3:,.0f} ms"
    if slo.tpot_s is not None and tpot_s > slo.tpot_s:
        return f"TPOT {at} is {tpot_s * 1e3:,.1f} ms with {load}; the limit is {slo.tpot_s * 1e3:,.1f} ms"
    return None
