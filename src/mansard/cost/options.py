"""Evaluate a deployment: walk the limits in the order an engine would meet them, and stop at the first.

Engine, formats, split, memory, context, then latency under the service level; each limit is one sentence with its
numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mansard.cost.deployment import Deployment, Option, Pricer, grid_up_to, percentiles, requests_held
from mansard.cost.engine_support import engine_problem
from mansard.cost.memory import Ledger, safe_fraction
from mansard.cost.parallelism import layout_problems
from mansard.cost.question import Question
from mansard.specs.number_formats import support
from mansard.specs.precision import number_format
from mansard.specs.slo import Slo


def evaluate(question: Question, pricer: Pricer, deployment: Deployment) -> Option:
    """Return the option with its curve, or with the first limit that rules it out."""
    limit = static_limit(question, deployment)
    if limit is not None:
        return Option(deployment, limit)
    deployment, result = _started(question, pricer, deployment)
    if result.problems:
        return Option(deployment, result.problems[0], result)
    held = requests_held(question, deployment, result)
    ranks = deployment.layout.data_parallel
    most = int(min(held, deployment.num_seqs) * ranks)
    grid = grid_up_to(most)
    capacity = held * (question.input_tokens + question.output_tokens)
    curve = pricer.estimate(deployment, grid, capacity)
    ttft, tpot = percentiles(question, deployment, curve)
    ttft, tpot = np.broadcast_to(ttft, grid.shape), np.broadcast_to(tpot, grid.shape)
    limit = None
    if question.slo is not None:
        limit = slo_limit(question.slo, float(ttft[0]), float(tpot[0]))
    return Option(deployment, limit, result, most, grid, curve, ttft, tpot)


def _started(question: Question, pricer: Pricer, deployment: Deployment) -> tuple[Deployment, Ledger]:
    """Return the ledger, with the memory fraction lowered where the default leaves too little beside the cache."""
    result = pricer.ledger(deployment)
    safe = math.floor(100.0 * safe_fraction(result)) / 100.0
    if not result.problems or question.memory_fraction is not None or not 0.0 < safe < deployment.fraction:
        return deployment, result
    lower = replace(deployment, fraction=safe)
    again = pricer.ledger(lower)
    return (deployment, result) if again.problems else (lower, again)


def static_limit(question: Question, deployment: Deployment) -> str | None:
    """Return the first limit that needs no pricing: engine, formats, split."""
    hardware = deployment.hardware
    found = question.problem or engine_problem(deployment.engine, hardware, deployment.layout)
    if found:
        return found
    for what, name in (("weights", deployment.weights), ("a KV cache", deployment.kv)):
        if support(hardware, name) == "none":
            return f"{hardware.name} cannot use {what} in {name}"
    group = number_format(deployment.weights).block_size if deployment.weights.startswith("int4") else None
    problems = layout_problems(question.spec, deployment.layout, group)
    return problems[0] if problems else None


def slo_limit(slo: Slo, ttft_s: float, tpot_s: float, load: str = "1 request at a time") -> str | None:
    """Return which latency breaks the service level, or None."""
    at = f"p{slo.percentile:g}"
    if slo.ttft_s is not None and ttft_s > slo.ttft_s:
        return f"TTFT {at} is {ttft_s * 1e3:,.0f} ms with {load}; the limit is {slo.ttft_s * 1e3:,.0f} ms"
    if slo.tpot_s is not None and tpot_s > slo.tpot_s:
        return f"TPOT {at} is {tpot_s * 1e3:,.1f} ms with {load}; the limit is {slo.tpot_s * 1e3:,.1f} ms"
    return None
