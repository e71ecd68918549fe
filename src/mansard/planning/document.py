"""The plan as JSON: one stable document, described by `plan.schema.json`, and the batch table as CSV.

Names end in their units. Fields are added in later versions, never renamed; `version` changes when one must be.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from typing import Any

from mansard.cost.deployment import Deployment
from mansard.cost.launch import LaunchCommand, launch_commands
from mansard.cost.levers import Lever
from mansard.cost.memory import Ledger
from mansard.cost.pareto import TradeOff
from mansard.cost.phases import Phase
from mansard.cost.pick import Pick
from mansard.cost.planner import Plan
from mansard.cost.search import Rejected
from mansard.cost.serving import Band
from mansard.cost.stored_formats import published_format
from mansard.planning.notes import NOT_MODELLED, assumptions, is_calibrated, published_errors
from mansard.specs.lengths import LengthDistribution
from mansard.specs.sizes import num_active_parameters, num_parameters

VERSION = 1


def document(plan: Plan, model: str) -> dict[str, Any]:
    """Return the plan as JSON values; `model` is what an engine is told to load."""
    question, chosen = plan.question, plan.chosen
    return {
        "version": VERSION,
        "fits": plan.fits,
        "model": {
            "name": question.spec.name or question.spec.model_type,
            "source": model,
            "num_parameters": num_parameters(question.spec) + question.other_parameters,
            "num_active_parameters": num_active_parameters(question.spec),
        },
        "workload": _workload(plan),
        "slo": None if question.slo is None else asdict(question.slo),
        "objective": question.objective,
        "answer": None if chosen is None else _answer(plan, chosen),
        "ledger": None if plan.ledger is None else _ledger(plan.ledger),
        "phases": [_phase(p) for p in plan.phases],
        "batch_table": [asdict(row) for row in plan.table],
        "levers": [_lever(lever) for lever in plan.levers],
        "fixes": list(plan.fixes),
        "closest": None if plan.closest is None else _rejected(plan.closest),
        "alternatives": [_alternative(p) for p in plan.ranked],
        "rejected": [_rejected(r) for r in plan.rejected],
        "pareto": {
            "by_device": [_trade_off(t) for t in plan.frontier_device],
            "by_cost": [_trade_off(t) for t in plan.frontier_cost],
        },
        "launch": [_command(c) for c in launches(plan, model)],
        "assumptions": list(assumptions(plan)),
        "not_modelled": list(NOT_MODELLED),
        "calibrated": is_calibrated(plan),
        "error": {
            metric: {"low": i.low, "high": i.high, "num_rows": i.num_rows} for metric, i in published_errors(plan)
        },
    }


def launches(plan: Plan, model: str) -> tuple[LaunchCommand, ...]:
    """Return the launch commands of the chosen deployment."""
    chosen = plan.chosen
    if chosen is None or plan.ledger is None:
        return ()
    users = math.ceil(chosen.concurrency / chosen.deployment.num_replicas / chosen.deployment.layout.data_parallel)
    if plan.question.workload.rate_req_s is not None:  # the mean of a Poisson number: leave room for three deviations
        users = min(math.ceil(users + 3.0 * users**0.5), chosen.deployment.num_seqs)
    published = published_format(plan.question.spec)
    return launch_commands(chosen.deployment, model, users, plan.ledger.pool.num_tokens, published)


def batch_csv(plan: Plan) -> str:
    """Return the batch table as CSV, one row a load, header first."""
    names = list(asdict(plan.table[0])) if plan.table else []
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in plan.table)
    return out.getvalue()


def _workload(plan: Plan) -> dict[str, Any]:
    load = plan.question.workload
    return {
        "name": load.name,
        "mean_input_tokens": plan.question.input_tokens,
        "mean_output_tokens": plan.question.output_tokens,
        "input_quantiles": _quantiles(load.input_tokens),
        "output_quantiles": _quantiles(load.output_tokens),
        "rate_req_s": load.rate_req_s,
        "concurrency": load.concurrency,
        "prefix_reuse": load.prefix_reuse,
        "max_model_len": plan.question.context,
    }


def _quantiles(lengths: LengthDistribution) -> dict[str, float]:
    return {f"p{p}": lengths.quantile(p / 100.0) for p in (50, 90, 99)}


def _deployment(d: Deployment) -> dict[str, Any]:
    return {
        "hardware": d.hardware.name,
        "num_devices": d.num_devices,
        "num_replicas": d.num_replicas,
        **asdict(d.layout),
        "weights": d.weights,
        "kv": d.kv,
        "engine": d.engine,
        "max_model_len": d.max_model_len,
        "max_num_batched_tokens": d.num_batched_tokens,
        "memory_fraction": d.fraction,
        "usd_per_hour": d.usd_per_hour,
    }


def _answer(plan: Plan, chosen: Pick) -> dict[str, Any]:
    found = plan.estimate
    assert found is not None
    replicas = chosen.deployment.num_replicas
    return {
        "deployment": _deployment(chosen.deployment),
        "concurrency": chosen.concurrency,
        "max_concurrency": chosen.option.max_running * replicas,
        "ttft_s": _band(found.ttft_s),
        "tpot_s": _band(found.tpot_s),
        "ttft_at_percentile_s": chosen.ttft_s,
        "tpot_at_percentile_s": chosen.tpot_s,
        "percentile": plan.question.limits.percentile,
        "output_tokens_per_s": _band(found.output_tokens_per_s, replicas),
        "requests_per_s": chosen.output_tokens_per_s / plan.question.output_tokens,
        "tokens_per_s_per_user": 1.0 / _float(found.tpot_s.best),
        "tokens_per_s_per_device": chosen.tokens_per_s_per_device,
        "usd_per_million_output_tokens": chosen.usd_per_million_tokens,
        "joules_per_token": None if found.joules_per_token is None else _float(found.joules_per_token),
        "mbu": _float(found.mbu),
        "mfu": _float(found.mfu),
        "bound": found.bound,
        "meets_slo": chosen.meets_slo if plan.question.slo else None,
    }


def _float(value: Any) -> float:
    return float(value)


def _band(band: Band, times: int = 1) -> dict[str, float]:
    return {"low": _float(band.low) * times, "best": _float(band.best) * times, "high": _float(band.high) * times}


def _ledger(found: Ledger) -> dict[str, Any]:
    return {
        "visible_bytes": found.visible_bytes,
        "memory_fraction": found.fraction,
        "budget_bytes": found.budget_bytes,
        "weights_by_part_bytes": {part: size for part, size in found.weights.items() if size},
        "items": [{"name": name, **asdict(estimate)} for name, estimate in found.items],
        "kv_tokens": found.pool.num_tokens,
        "kv_blocks": found.pool.num_blocks,
        "kv_max_concurrency": found.pool.max_concurrency,
        "longest_model_len": found.longest_model_len,
        "problems": list(found.problems),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    values = asdict(phase)
    for op, source in zip(values["ops"], phase.ops, strict=True):
        op["intensity"] = source.intensity
    return {**values, "ops": list(values["ops"])}


def _lever(lever: Lever) -> dict[str, Any]:
    return {
        "change": lever.change,
        "users": lever.users,
        "users_before": lever.users_before,
        "tpot_ratio": lever.tpot,
        "tpot_alone_ratio": lever.tpot_alone,
        "tokens_per_s_ratio": lever.tokens_per_s,
        "usd_per_million_tokens_ratio": lever.usd,
    }


def _alternative(p: Pick) -> dict[str, Any]:
    return {
        "deployment": _deployment(p.deployment),
        "concurrency": p.concurrency,
        "ttft_at_percentile_s": p.ttft_s,
        "tpot_at_percentile_s": p.tpot_s,
        "output_tokens_per_s": p.output_tokens_per_s,
        "usd_per_million_output_tokens": p.usd_per_million_tokens,
    }


def _rejected(item: Rejected) -> dict[str, Any]:
    return {"deployment": _deployment(item.option.deployment), "limit": item.limit}


def _trade_off(point: TradeOff) -> dict[str, Any]:
    return {
        "deployment": _deployment(point.deployment),
        "concurrency": point.concurrency,
        "tokens_per_s_per_user": point.tokens_per_s_per_user,
        "tokens_per_s_per_device": point.tokens_per_s_per_device,
        "usd_per_million_output_tokens": point.usd_per_million_tokens,
    }


def _command(command: LaunchCommand) -> dict[str, Any]:
    return {"engine": command.engine, "command": command.text, "notes": list(command.notes)}
