"""The tables of `mansard simulate`: one simulation in full, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from rich.table import Table

from mansard.sim.summary import Spread, Summary

SPREADS = (
    ("TTFT", "ttft_s"),
    ("TPOT", "tpot_s"),
    ("ITL", "itl_s"),
    ("end to end", "e2e_s"),
    ("queue", "queue_s"),
)
COMPARED = (
    "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "E2E p50", "tok/s", "goodput", "batch", "KV", "preempt", "hits",
    "$/Mtok",
)  # fmt: skip


def time_text(seconds: float) -> str:
    """Return a duration with the digits that matter."""
    if isnan(seconds):
        return "–"
    if seconds < 0.1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10.0 else f"{seconds:,.1f} s"


def latency_table(summary: Summary) -> Table:
    """Return the latencies of one simulation."""
    table = Table("", "mean", "p50", "p90", "p95", "p99", "max", box=None, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, key in SPREADS:
        spread: Spread = getattr(summary, key)
        values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
        table.add_row(name, *map(time_text, values))
    return table


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Return the other numbers of one simulation as (name, text)."""
    found = [
        ("requests", f"{summary.num_requests:,} in {time_text(summary.duration_s)}, {summary.num_refused} refused"),
        ("throughput", f"{summary.requests_per_s:,.2f} requests/s · {summary.output_tokens_per_s:,.0f} output tokens/s"
                       f" · {summary.total_tokens_per_s:,.0f} tokens/s"),
        ("batch", f"mean {summary.mean_running:.1f}, at most {summary.max_running} · busy {summary.busy_share:.0%}"),
        ("KV cache", f"mean {summary.mean_kv_usage:.1%}, at most {summary.max_kv_usage:.1%}"
                     f" · {summary.num_preemptions:,} preemptions · {summary.prefix_hit_share:.1%} prefix hits"),
    ]  # fmt: skip
    if summary.goodput_req_s is not None and summary.slo_share is not None:
        found.append(("goodput", f"{summary.goodput_req_s:,.2f} requests/s · {summary.slo_share:.1%} meet the SLO"))
    if summary.usd_per_million_output_tokens is not None:
        found.append(("cost", f"${summary.usd_per_million_output_tokens:,.2f} per million output tokens"))
    return found


def comparison_table(rows: Sequence[tuple[str, Summary]], title: str = "") -> Table:
    """Return several simulations side by side."""
    table = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in COMPARED:
        table.add_column(name, justify="right", no_wrap=True)
    for label, s in rows:
        cost, good = s.usd_per_million_output_tokens, s.goodput_req_s
        table.add_row(
            label, time_text(s.ttft_s.p50), time_text(s.ttft_s.p99), time_text(s.tpot_s.p50), time_text(s.tpot_s.p99),
            time_text(s.e2e_s.p50), f"{s.output_tokens_per_s:,.0f}", "–" if good is None else f"{good:.2f}/s",
            f"{s.mean_running:.1f}", f"{s.mean_kv_usage:.0%}", f"{s.num_preemptions:,}", f"{s.prefix_hit_share:.0%}",
            "–" if cost is None else f"{cost:.2f}",
        )  # fmt: skip
    return table
