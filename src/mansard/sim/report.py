"""The HTML report of a simulation: one file without scripts or links, charts as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mansard.sim.experiment import Experiment
from mansard.sim.outcome import ReplicaOutcome, SimulationResult
from mansard.sim.summary import Spread, Summary
from mansard.sim.svg import MAX_POINTS, Mark, Series, line_chart

Floats = NDArray[np.float64]

STYLE = """
:root { --ink: #1c2430; --soft: #5c6776; --line: #e2e6ec; --page: #ffffff; --card: #f7f8fa;
  --s0: #2563a8; --s1: #d9772b; --s2: #2f8f5b; --s3: #8a4fae; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #2c3440; --page: #14181e;
  --card: #1b2028; --s0: #6ba6e8; --s1: #f0a060; --s2: #67c793; --s3: #c08fe0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } p.sub { color: var(--soft); margin: 0 0 1.4rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7rem;
  margin-bottom: 1.4rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; } .card span { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem; }
figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
.line { fill: none; stroke-width: 1.8; } .grid { stroke: var(--line); stroke-width: 1; }
.mark { stroke: var(--soft); stroke-dasharray: 4 3; } .tick { font-size: 11px; fill: var(--soft); }
.label { font-size: 11px; fill: var(--soft); text-anchor: middle; }
.legend { display: flex; gap: 1rem; flex-wrap: wrap; color: var(--soft); font-size: 13px; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: 4px;
  background: var(--s0); }
path.s0 { stroke: var(--s0); } path.s1 { stroke: var(--s1); } path.s2 { stroke: var(--s2); }
path.s3 { stroke: var(--s3); }
.key.s1::before { background: var(--s1); } .key.s2::before { background: var(--s2); }
.key.s3::before { background: var(--s3); }
table { border-collapse: collapse; margin: 1.4rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
"""


def write_report(path: Path, experiment: Experiment, result: SimulationResult, summary: Summary) -> None:
    """Write the report of one simulation."""
    path.write_text(render(experiment, result, summary), encoding="utf-8")


def render(experiment: Experiment, result: SimulationResult, summary: Summary) -> str:
    """Return the report as HTML."""
    head = escape(result.deployment.describe())
    config = result.config
    rules = (
        f"{experiment.traffic.name}, {summary.num_requests:,} requests · {config.policy} batching, "
        f"{config.kv_reservation} KV · at most {config.max_num_batched_tokens:,} tokens and {config.max_num_seqs:,} "
        f"sequences a step · context {config.max_model_len:,} · prefix cache "
        f"{'on' if config.enable_prefix_caching else 'off'}"
    )
    profile = result.deployment.priced.profile
    state = "" if profile.calibrated else " (uncalibrated)"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Simulation: {head}</title><style>{STYLE}</style></head><body><h1>{head}</h1>"
        f'<p class="sub">{escape(rules)} · profile {escape(profile.name)}{state}</p>'
        f'<div class="cards">{_cards(summary)}</div><div class="charts">{"".join(_charts(experiment, result))}</div>'
        f"{_table(summary)}</body></html>\n"
    )


def _cards(summary: Summary) -> str:
    shown = [
        (_time(summary.ttft_s.p50), f"TTFT p50 (p99 {_time(summary.ttft_s.p99)})"),
        (_time(summary.tpot_s.p50), f"TPOT p50 (p99 {_time(summary.tpot_s.p99)})"),
        (f"{summary.output_tokens_per_s:,.0f}", "output tokens per second"),
        (f"{summary.mean_running:.1f}", f"mean batch (at most {summary.max_running})"),
        (f"{summary.max_kv_usage:.0%}", "of the KV cache at most"),
        (f"{summary.num_preemptions:,}", "preemptions"),
        (f"{summary.prefix_hit_share:.1%}", "prefix hits"),
    ]
    if summary.goodput_req_s is not None:
        shown.insert(2, (f"{summary.goodput_req_s:.2f}/s", f"goodput ({summary.slo_share or 0.0:.1%} meet the SLO)"))
    if summary.usd_per_million_output_tokens is not None:
        shown.append((f"${summary.usd_per_million_output_tokens:,.2f}", "per million output tokens"))
    return "".join(f'<div class="card"><b>{escape(v)}</b><span>{escape(n)}</span></div>' for v, n in shown)


def _charts(experiment: Experiment, result: SimulationResult) -> list[str]:
    served, slo = result.served, experiment.slo
    ttft = [Mark("SLO", slo.ttft_s)] if slo is not None and slo.ttft_s is not None else []
    tpot = [Mark("SLO", slo.tpot_s)] if slo is not None and slo.tpot_s is not None else []
    gaps = [lane.timeline.gaps_s() for lane in result.replicas]
    itl = _cdf("ITL", np.concatenate([g for g, _ in gaps]), np.concatenate([c for _, c in gaps]))
    per_token = _cdf("TPOT", np.array([r.tpot_s for r in served if r.tpot_s is not None]))
    first = [_cdf("TTFT", np.array([r.ttft_s for r in served])), _cdf("E2E", np.array([r.e2e_s for r in served]))]
    tokens = [_rate("prompt", result.replicas, "num_prefill_tokens"), _rate("decode", result.replicas, "num_decodes")]
    share = {"y_label": "share of requests", "log_x": True, "y_max": 1.0, "percent": True}
    lanes = [lane for lane in result.replicas if len(lane.timeline)]
    return [
        line_chart("Time to first token, end to end", first, "seconds", marks=ttft, **share),  # type: ignore[arg-type]
        line_chart("Time per output token, between tokens", [per_token, itl], "seconds", marks=tpot, **share),  # type: ignore[arg-type]
        line_chart("Batch and queue", [_over_time("running", lanes, "num_running"),
                                       _over_time("waiting", lanes, "num_waiting")],
                   "seconds", "sequences", stepped=True),
        line_chart("KV cache in use", _usage(lanes), "seconds", "share of blocks", percent=True, stepped=True),
        line_chart("TTFT over time", [_scatter(result)], "arrival, seconds", "mean TTFT, seconds"),
        line_chart("Tokens computed", tokens, "seconds", "tokens per second"),
    ]  # fmt: skip


def _cdf(name: str, values: Floats, counts: Floats | None = None) -> Series:
    """Return the share of values up to each, at evenly spaced shares."""
    if not len(values):
        return Series(name, [], [])
    order = np.argsort(values)
    heights = np.cumsum(np.ones(len(values)) if counts is None else counts[order])
    shares = np.linspace(0.0, 1.0, min(MAX_POINTS, len(values) + 1))[1:]
    index = np.minimum(np.searchsorted(heights, shares * heights[-1]), len(values) - 1)
    return Series(name, values[order][index].tolist(), shares.tolist())


def _bins(lanes: Sequence[ReplicaOutcome]) -> Floats:
    end = max((lane.timeline.step_ends_s[-1] for lane in lanes), default=1.0)
    return np.linspace(0.0, end, MAX_POINTS // 2 + 1)


def _over_time(name: str, lanes: Sequence[ReplicaOutcome], column: str, scale: bool = False) -> Series:
    """Return a column's sum over lanes at evenly spaced times; 0 where a lane is idle."""
    grid = _bins(lanes)
    total = np.zeros(len(grid))
    for lane in lanes:
        total += _sampled(lane, column, grid) / (lane.num_blocks if scale else 1.0)
    return Series(name, grid.tolist(), total.tolist())


def _sampled(lane: ReplicaOutcome, column: str, grid: Floats) -> Floats:
    timeline = lane.timeline
    starts, values = timeline.column("start_s"), timeline.column(column)
    last = np.cumsum(timeline.column("num_steps").astype(np.int64)) - 1
    ends = np.array(timeline.step_ends_s)[last]
    index = np.searchsorted(starts, grid, side="right") - 1
    inside = (index >= 0) & (grid < ends[index])
    return np.where(inside, values[index], 0.0)


def _usage(lanes: Sequence[ReplicaOutcome]) -> list[Series]:
    return [_over_time(lane.name, [lane], "num_used_blocks", scale=True) for lane in lanes[:4]]


def _rate(name: str, lanes: Sequence[ReplicaOutcome], column: str) -> Series:
    """Return tokens per second in evenly spaced intervals."""
    edges = _bins(lanes)[::4]
    total = np.zeros(len(edges) - 1)
    for lane in lanes:
        ends = np.array(lane.timeline.step_ends_s)
        total += np.histogram(ends, bins=edges, weights=lane.timeline.by_step(column))[0]
    return Series(name, edges[1:].tolist(), (total / np.diff(edges)).tolist())


def _scatter(result: SimulationResult) -> Series:
    """Return the mean TTFT of requests that arrive in the same interval."""
    served = sorted(result.served, key=lambda r: r.arrival_s)
    parts = [part for part in np.array_split(np.arange(len(served)), min(120, max(1, len(served)))) if len(part)]
    x = [float(np.mean([served[i].arrival_s for i in part])) for part in parts]
    y = [float(np.mean([served[i].ttft_s for i in part])) for part in parts]
    return Series("mean TTFT", x, y)


def _table(summary: Summary) -> str:
    rows = (("TTFT", summary.ttft_s), ("TPOT", summary.tpot_s), ("ITL", summary.itl_s), ("end to end", summary.e2e_s),
            ("queue", summary.queue_s))  # fmt: skip
    head = "".join(f"<th>{n}</th>" for n in ("", "mean", "p50", "p90", "p95", "p99", "max"))
    return f"<table><tr>{head}</tr>{''.join(_row(name, spread) for name, spread in rows)}</table>"


def _row(name: str, spread: Spread) -> str:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return f"<tr><td>{name}</td>{''.join(f'<td>{_time(v)}</td>' for v in values)}</tr>"


def _time(seconds: float) -> str:
    if isnan(seconds):
        return "–"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1.0 else f"{seconds:,.2f} s"
