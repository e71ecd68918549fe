"""Notes: what a plan assumed, what it leaves out, and how far its method was off where it was measured."""

from __future__ import annotations

from mansard.cost.deployment import base_profile, cached_tokens
from mansard.cost.engine_support import ENGINES
from mansard.cost.planner import Plan
from mansard.cost.profiles import Interval, interval_for
from mansard.cost.question import COMFORT
from mansard.cost.serving import model_class

NOT_MODELLED = (
    "bursts and the full distribution of latencies (try `mansard simulate`)",
    "quality lost to smaller formats (measure it with `mansard eval`)",
    "start-up, loading, autoscaling, failures and spare capacity",
    "network between users and server, tokenization on a busy host",
    "host, cooling and idle energy; price of storage and traffic",
)


def assumptions(plan: Plan) -> tuple[str, ...]:
    """Return what the plan took for granted, one sentence each."""
    question = plan.question
    load, found = question.workload, []
    cut = load.max_model_len > question.context
    found.append(
        f"workload {load.name}: {question.input_tokens:,.0f} prompt and {question.output_tokens:,.0f} output tokens on "
        f"average; context {question.context:,}" + (" (longer requests are cut)" if cut else "")
    )
    if question.slo is None and not question.has_load:
        found.append(
            f"no service level given: the load is the most that keeps TPOT {COMFORT.tpot_s or 0:.3g} s and TTFT "
            f"{COMFORT.ttft_s or 0:.3g} s at p{COMFORT.percentile:g}"
        )
    deployment = plan.deployment
    if deployment is None:
        return tuple(found)
    if question.speculation is not None:
        drafts = question.speculation
        found.append(
            f"{drafts.num_drafts} draft tokens a step, each accepted at {drafts.acceptance:.0%}; drafting is free"
        )
    cached = cached_tokens(question, deployment.engine)
    if cached:
        found.append(f"{cached:,.0f} of a prompt's tokens are found in the prefix cache (an unbounded one)")
    price = deployment.hardware.price
    if price is not None:
        found.append(f"${price.usd_per_hour:.2f} per device and hour ({price.kind}, {price.date}); --price overrides")
    else:
        found.append(f"no price is known for {deployment.hardware.name}; give --price")
    if not deployment.hardware.visible_memory_known:
        found.append("memory visible to a framework is estimated from the nominal size")
    found.append(f"{ENGINES[deployment.engine].label}: memory fraction {deployment.fraction:g}, "
                 f"{deployment.num_batched_tokens:,} tokens a step")  # fmt: skip
    return tuple(found)


def published_errors(plan: Plan) -> tuple[tuple[str, Interval], ...]:
    """Return, for each metric, the interval in which 80 % of measurements lie around the prediction."""
    deployment = plan.deployment or (plan.closest.option.deployment if plan.closest else None)
    if deployment is None:
        return ()
    profile = base_profile(deployment.hardware, deployment.engine)
    kind = model_class(plan.question.spec)
    return tuple((metric, interval_for(metric, kind, profile)) for metric in ("tpot", "ttft", "throughput"))


def is_calibrated(plan: Plan) -> bool:
    """Say whether the constants were fitted for this engine on this architecture."""
    deployment = plan.deployment or (plan.closest.option.deployment if plan.closest else None)
    return deployment is not None and base_profile(deployment.hardware, deployment.engine).calibrated


def error_line(plan: Plan) -> str:
    """Return the published error of the method in one sentence."""
    parts = [
        f"{metric.upper() if metric != 'throughput' else metric} {found.low - 1.0:+.0%} to {found.high - 1.0:+.0%}"
        for metric, found in published_errors(plan)
    ]
    if not is_calibrated(plan):
        return f"uncalibrated for this engine and architecture: assume {', '.join(parts)}"
    return f"four of five measurements lie within {', '.join(parts)} (docs/accuracy.md)"
