"""Figures of a plan: the roofline with prefill and decode over batch, the frontiers, the memory bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from mansard.cost.deployment import Pricer
from mansard.cost.memory import Ledger
from mansard.cost.pareto import TradeOff
from mansard.cost.phases import Phase, decode_phase, prefill_phase
from mansard.cost.planner import TABLE, Plan
from mansard.planning.axes import WIDTH, Axes, around, svg, text
from mansard.planning.words import deployment_text, dollars, gib, number, scaled, seconds
from mansard.specs.hardware import HardwareSpec

PROMPTS = (64, 256, 1024, 4096)


def roofline(plan: Plan) -> str:
    """Return the roofline: attainable FLOP/s over FLOP/byte, decode steps by batch and prefills by length."""
    assert plan.chosen is not None
    one = replace(plan.chosen.deployment, num_replicas=1)
    pricer, hardware = Pricer(plan.question), one.hardware
    most = plan.chosen.option.max_running
    loads = [c for c in TABLE if c < most] + [most]
    decodes = [decode_phase(pricer, one, float(c)) for c in loads]
    longest = min(one.max_model_len, max(PROMPTS))
    prefills = [prefill_phase(pricer, one, float(n)) for n in PROMPTS if n <= longest]
    rate = pricer.priced(one).formats.parts["mlp"].rate
    peak, ridge = hardware.peak_flops(rate), hardware.ridge(rate)
    points = [*decodes, *prefills]
    x = around([p.intensity for p in points] + [ridge], 2.0)
    y = around([p.achieved_flops for p in points] + [peak], 2.0)
    axes = Axes.over(x, y, "arithmetic intensity, FLOP per byte", "FLOP/s of one device", (True, True))
    body = axes.frame() + _roof(axes, hardware, peak, ridge, rate)
    body += _phase_points(axes, decodes, "decode") + _phase_points(axes, prefills, "prefill")
    here = decode_phase(pricer, one, plan_load(plan))
    tip = f"the plan: decode {number(here.concurrency)} at once, {number(here.intensity)} FLOP/byte, {here.bound} bound"
    body += axes.dot(here.intensity, here.achieved_flops, "dot chosen", tip, 6.5)
    body += axes.note(here.intensity, here.achieved_flops, "the plan", "label strong", "end", 12)
    return svg(
        "Roofline of one device",
        f"Decode from 1 to {most} requests at once and prefill of {PROMPTS[0]} to {longest} tokens under the roof of "
        f"{hardware.name}: {scaled(peak, 'FLOP/s')} in {rate}, ridge at {ridge:.0f} FLOP per byte.",
        body,
    )


def plan_load(plan: Plan) -> float:
    """Return the plan's requests at once of one replica."""
    assert plan.chosen is not None
    return max(1.0, plan.chosen.concurrency / plan.chosen.deployment.num_replicas)


def _roof(axes: Axes, hardware: HardwareSpec, peak: float, ridge: float, rate: str) -> str:
    low, high, floor = axes.x.low, axes.x.high, axes.y.low
    start = max(low, floor / hardware.memory_bytes_per_s)
    roof = [(start, start * hardware.memory_bytes_per_s), (ridge, peak), (high, peak)]
    middle = start**0.7 * ridge**0.3
    slope = scaled(hardware.memory_bytes_per_s, "B/s")
    return (
        axes.line(roof, "roof")
        + axes.line([(ridge, floor), (ridge, peak)], "ridge")
        + axes.note(high, peak, f"{scaled(peak, 'FLOP/s')} {rate}", "label", "end")
        + text(axes.x.at(ridge) + 6, axes.y.at(floor) - 8, f"ridge {ridge:.0f}", "label")
        + axes.note(middle, middle * hardware.memory_bytes_per_s, slope, "label", "end", 8)
    )


def _phase_points(axes: Axes, phases: Sequence[Phase], kind: str) -> str:
    """Return a line through the phases with a dot each; the first and the last are named."""
    path = [(p.intensity, p.achieved_flops) for p in phases]
    parts = [axes.line(path, f"trace {kind}")]
    for i, p in enumerate(phases):
        count = number(p.concurrency if kind == "decode" else p.num_tokens)
        what = f"{kind} {count} {'at once' if kind == 'decode' else 'tokens'}"
        tip = f"{what}: {number(p.intensity)} FLOP/byte, {scaled(p.achieved_flops, 'FLOP/s')}, {seconds(p.time_s)}"
        parts.append(axes.dot(p.intensity, p.achieved_flops, f"dot {kind}", f"{tip}, bound by {p.bound}"))
        if i == 0:
            parts.append(axes.note(p.intensity, p.achieved_flops, what, f"label {kind}", "start", -18))
    return "".join(parts)


def latency(plan: Plan) -> str:
    """Return how TPOT and TTFT at the percentile rise with the requests at once, with the limits as lines."""
    rows, limits = plan.table, plan.question.limits
    series = (
        ("decode", "TPOT", limits.tpot_s, [(r.concurrency, r.tpot_at_percentile_s * 1e3) for r in rows]),
        ("prefill", "TTFT", limits.ttft_s, [(r.concurrency, r.ttft_at_percentile_s * 1e3) for r in rows]),
    )
    heights = [y for _, _, limit, path in series for y in (*(v for _, v in path), (limit or path[0][1] / 1e3) * 1e3)]
    at = f"p{limits.percentile:g}"
    axes = Axes.over(
        around([r.concurrency for r in rows], 1.15),
        around(heights, 1.5),
        "requests at once",
        f"ms at {at}",
        (True, True),
    )
    body = axes.frame()
    for kind, name, limit, path in series:
        body += axes.line(path, f"trace {kind}")
        body += "".join(
            axes.dot(x, y, f"dot {kind}", f"{name} {at} with {number(x)} at once: {seconds(y / 1e3)}") for x, y in path
        )
        body += axes.note(*path[0], name, f"label {kind}", "start", 10)
        if limit is not None:
            body += axes.line([(axes.x.low, limit * 1e3), (axes.x.high, limit * 1e3)], f"limit {kind}")
            body += axes.note(axes.x.low, limit * 1e3, f" {name} limit {seconds(limit)}", f"label {kind}", "start", 6)
    return svg(
        "Latency by requests at once", f"TPOT and TTFT at {at} of the plan's deployment, with their limits.", body
    )


def frontier(plan: Plan, by_cost: bool) -> str:
    """Return a frontier: tokens/s/user against tokens/s/device, or against dollars per million tokens."""
    points = plan.frontier_cost if by_cost else plan.frontier_device
    if not points:
        return ""
    title = "$ per million output tokens" if by_cost else "output tokens/s of one device"
    axes = Axes.over(
        around([p.tokens_per_s_per_user for p in points], 1.2),
        around([_height(p, by_cost) for p in points], 1.3),
        "tokens/s of one user",
        title,
        (True, True),
    )
    body = axes.frame() + axes.line([(p.tokens_per_s_per_user, _height(p, by_cost)) for p in points], "trace frontier")
    for p in points:
        cost = "" if p.usd_per_million_tokens is None else f", {dollars(p.usd_per_million_tokens)} a million"
        tip = (
            f"{deployment_text(p.deployment)}, {number(p.concurrency)} at once: {number(p.tokens_per_s_per_user)} tok/s"
        )
        tip += f" a user, {number(p.tokens_per_s_per_device)} a device{cost}"
        body += axes.dot(p.tokens_per_s_per_user, _height(p, by_cost), "dot frontier", tip, 3.5)
    for p, anchor, lift in ((points[0], "end", 12.0), (points[-1], "start", 12.0)):
        name = f"{p.deployment.num_devices}× {p.deployment.hardware.name}"
        body += axes.note(p.tokens_per_s_per_user, _height(p, by_cost), name, "label frontier", anchor, lift)
    chosen = plan.chosen
    if chosen is not None:
        y = chosen.usd_per_million_tokens if by_cost else chosen.tokens_per_s_per_device
        if y is not None:
            x = chosen.tokens_per_s_per_user
            body += axes.dot(x, y, "dot chosen", f"the plan: {deployment_text(chosen.deployment)}", 6.5)
            right = axes.x.at(x) > WIDTH * 0.6
            body += axes.note(x, y, "the plan", "label strong", "end" if right else "start", -22)
    kind = "cost" if by_cost else "throughput"
    return svg(f"Frontier of speed and {kind}", f"{len(points)} options that no other beats in both respects.", body)


def _height(point: TradeOff, by_cost: bool) -> float:
    return (point.usd_per_million_tokens or 0.0) if by_cost else point.tokens_per_s_per_device


def memory_bar(ledger: Ledger) -> str:
    """Return the memory of one device as one stacked bar with its legend."""
    needed = sum(max(0.0, item.best) for _, item in ledger.items)
    total, x, parts, legend = max(ledger.visible_bytes, needed), 0.0, [], []
    for i, (name, item) in enumerate(ledger.items):
        if item.best < 0.0:
            continue
        share = item.best / total
        width = share * WIDTH
        tip = escape(f"{name}: {gib(item.best)} GiB ({gib(item.low)} to {gib(item.high)}), {share:.1%}", quote=True)
        parts.append(
            f'<rect class="part part{i}" tabindex="0" role="img" aria-label="{tip}" x="{x:.1f}" y="4" '
            f'width="{max(width - 1.5, 0.5):.1f}" height="34" rx="3"><title>{tip}</title></rect>'
        )
        x += width
        legend.append(f'<li><span class="key part{i}"></span>{escape(name)} <b>{gib(item.best)}</b> GiB</li>')
    edge = ledger.visible_bytes / total * WIDTH
    if edge < WIDTH - 1.0:
        parts.append(f'<path class="edge" d="M{edge:.1f},0V42"/>')
        parts.append(text(edge + 6, 25, f"{gib(ledger.visible_bytes)} GiB are there", "on-part"))
    drawing = svg("Memory of one device", f"{gib(total)} GiB visible to the framework.", "".join(parts), 42.0)
    return f'{drawing}<ul class="legend">{"".join(legend)}</ul>'
