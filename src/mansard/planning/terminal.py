"""The plan in the terminal: the answer first, then why, then what would change it.

Readable at 80 columns and in a pipe; colour only where a terminal shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mansard.cost.levers import Lever, split_text
from mansard.cost.memory import Ledger
from mansard.cost.phases import OpShare, Phase
from mansard.cost.planner import BatchRow, Plan
from mansard.cost.search import Rejected
from mansard.planning.document import launches
from mansard.planning.notes import NOT_MODELLED, assumptions, error_line
from mansard.planning.words import (
    deployment_text,
    dollars,
    gib,
    number,
    percent,
    scaled,
    seconds,
    two_digits,
)

MAX_OPTIONS, MAX_REJECTED = 8, 8
BAR = 16  # cells of a full share bar


def show(plan: Plan, model: str, console: Console, detail: bool = False) -> None:
    """Print the whole plan."""
    if plan.chosen is None:
        _show_refusal(plan, console)
        return
    _show_answer(plan, console)
    if plan.ledger is not None:
        _section(console, "Memory of one device, GiB", ledger_table(plan.ledger))
        console.print(_pool_line(plan.ledger), style="dim")
    _section(console, "Phases against the roofline", phase_table(plan.phases))
    _section(console, "By requests at once", batch_table(plan.table))
    console.print("* the plan's load. TTFT, TPOT: means; limit: what ends the admissible range", style="dim")
    if detail:
        for phase in plan.phases:
            _section(console, f"Ops of {phase.name}, {number(phase.concurrency)} at once", op_table(phase.ops))
    if plan.levers:
        _section(console, "Next levers, one change each", lever_table(plan.levers))
    others = _other_options(plan)
    if others is not None:
        _section(console, "Other options", others)
    if plan.rejected:
        _section(console, f"Rejected: {len(plan.rejected)}", rejected_table(plan.rejected))
    _show_launch(plan, model, console)
    _bullets(console, "Assumed", assumptions(plan))
    _bullets(console, "Not modelled", NOT_MODELLED)
    console.print(f"Error of the method: {error_line(plan)}", style="dim")


def _show_answer(plan: Plan, console: Console) -> None:
    chosen, found = plan.chosen, plan.estimate
    assert chosen is not None and found is not None
    console.print(Text.assemble((deployment_text(chosen.deployment), "bold green")))
    low, high = float(found.tpot_s.low), float(found.tpot_s.high)
    at = f"p{plan.question.limits.percentile:g}"
    cost = chosen.usd_per_million_tokens
    rate = chosen.output_tokens_per_s
    lines = [
        f"{number(chosen.concurrency)} requests at once · {number(rate)} output tok/s · "
        f"{number(rate / plan.question.output_tokens)} req/s · {number(chosen.tokens_per_s_per_device)} tok/s a device",
        f"TPOT {seconds(float(found.tpot_s.best))} ({seconds(low)} to {seconds(high)}; {at} {seconds(chosen.tpot_s)})"
        f" · TTFT {seconds(float(found.ttft_s.best))} ({at} {seconds(chosen.ttft_s)})",
    ]
    hourly = chosen.deployment.usd_per_hour
    joules = found.joules_per_token
    money = "no price known" if cost is None else f"{dollars(cost)} a million output tokens, {dollars(hourly)} an hour"
    energy = "" if joules is None else f" · about {two_digits(float(joules))} J a token"
    lines.append(f"{money}{energy} · bound by {found.bound}")
    if plan.question.slo is not None:
        late = float(found.ttft_s.high) / float(found.ttft_s.best), high / float(found.tpot_s.best)
        sure = plan.question.slo.is_met(chosen.ttft_s * late[0], chosen.tpot_s * late[1])
        doubt = "also at the high end of the interval" if sure else "not at the high end of the interval"
        lines.append(f"Service level {plan.question.slo.name} at {at}: kept by the best estimate, {doubt}")
    for line in lines:
        console.print(line, highlight=False)


def _show_refusal(plan: Plan, console: Console) -> None:
    console.print("Nothing fits.", style="bold red")
    if plan.closest is not None:
        deployment = plan.closest.option.deployment
        console.print(f"Closest: {deployment_text(deployment)}: {plan.closest.limit}", highlight=False)
    if plan.ledger is not None:
        _section(console, "Memory of one device of the closest, GiB", ledger_table(plan.ledger))
    if plan.fixes:
        _bullets(console, "Single changes that would make it fit", plan.fixes, limit=12)
    else:
        console.print("No single change would make it fit.")
    if plan.rejected:
        _section(console, f"Rejected: {len(plan.rejected)}", rejected_table(plan.rejected))
    _bullets(console, "Assumed", assumptions(plan))


def _section(console: Console, title: str, body: Table) -> None:
    console.print()
    console.print(title, style="bold")
    console.print(Padding(body, (0, 0, 0, 0)))


def _bullets(console: Console, title: str, lines: Sequence[str], limit: int = 20) -> None:
    console.print()
    console.print(title, style="bold")
    for line in lines[:limit]:
        console.print(f"- {line}", highlight=False)


def plain_table(*columns: str, left: int = 1) -> Table:
    """Return a table whose first `left` columns are words and the rest numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim", show_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=i >= left, overflow="fold")
    return table


def ledger_table(ledger: Ledger) -> Table:
    """Return the memory ledger: low, best and high of every line."""
    table = plain_table("", "low", "best", "high", "")
    for name, item in ledger.items:
        share = max(0.0, item.best) / ledger.visible_bytes
        if item.best < 0.0:
            name = f"{name} (missing)"
        table.add_row(name, gib(item.low), gib(item.best), gib(item.high), bar(share))
    table.add_row("visible", "", gib(ledger.visible_bytes), "", "")
    table.columns[4].justify = "left"
    return table


def _pool_line(ledger: Ledger) -> str:
    pool = ledger.pool
    return (
        f"KV cache: {pool.num_tokens:,} tokens in {pool.num_blocks:,} blocks; "
        f"{pool.max_concurrency:,.4g} requests of {ledger.max_model_len:,} tokens, "
        f"the longest {ledger.longest_model_len:,}"
    )


def phase_table(phases: Iterable[Phase]) -> Table:
    """Return each phase's arithmetic intensity beside the ridge point, and what bounds it."""
    table = plain_table("phase", "at once", "FLOP/byte", "ridge", "bound by", "step", "achieved")
    for p in phases:
        table.add_row(
            p.name,
            number(p.concurrency),
            number(p.intensity),
            number(p.ridge),
            p.bound,
            seconds(p.time_s),
            scaled(p.achieved_flops, "FLOP/s"),
        )
    return table


def batch_table(rows: Iterable[BatchRow]) -> Table:
    """Return the batch table."""
    table = plain_table("", "TTFT", "TPOT", "tok/s", "/user", "MBU", "MFU", "$/Mtok", "J/tok", "limit")
    for row in rows:
        table.add_row(
            f"{number(row.concurrency)}{'*' if row.chosen else ''}",
            seconds(row.ttft_s),
            seconds(row.tpot_s),
            number(row.output_tokens_per_s),
            number(row.tokens_per_s_per_user),
            f"{row.mbu:.0%}",
            f"{row.mfu:.0%}",
            dollars(row.usd_per_million_tokens),
            "–" if row.joules_per_token is None else two_digits(row.joules_per_token),
            row.limit,
            style="bold" if row.chosen else None,
        )
    return table


def op_table(ops: Iterable[OpShare]) -> Table:
    """Return a step's ops with the share of its time as bars."""
    table = plain_table("op", "×", "GFLOP", "MB", "FLOP/byte", "bound", "time", "", "share")
    for op in ops:
        table.add_row(
            op.name,
            str(op.count),
            f"{op.flops / 1e9:,.3g}",
            f"{(op.bytes + op.network_bytes) / 1e6:,.4g}",
            number(op.intensity),
            op.bound,
            seconds(op.time_s) if op.time_s else "0",
            bar(op.share),
            f"{op.share:.1%}",
        )
    table.columns[7].justify = "left"
    return table


def lever_table(levers: Iterable[Lever]) -> Table:
    """Return the levers with their deltas, at the load that the same limits then allow."""
    table = plain_table("change", "at once", "TPOT alone", "tok/s", "$/Mtok")
    for lever in levers:
        change = lever.users - lever.users_before
        users = f"{lever.users:,} ({change:+,})" if change else f"{lever.users:,} (±0)"
        cost = "–" if lever.usd is None else percent(lever.usd)
        table.add_row(lever.change, users, percent(lever.tpot_alone), percent(lever.tokens_per_s), cost)
    return table


def _other_options(plan: Plan) -> Table | None:
    shown = plan.alternatives[:MAX_OPTIONS]
    if not shown:
        return None
    table = plain_table("devices", "split", "weights/KV", "at once", "TPOT", "tok/s", "$/Mtok", left=3)
    for p in shown:
        d = p.deployment
        split = split_text(d.layout) + (f" ×{d.num_replicas}" if d.num_replicas > 1 else "")
        table.add_row(
            f"{d.num_devices}× {d.hardware.name}",
            split,
            f"{d.weights}/{d.kv}",
            number(p.concurrency),
            seconds(p.tpot_s),
            number(p.output_tokens_per_s),
            dollars(p.usd_per_million_tokens),
        )
    return table


def rejected_table(rejected: Sequence[Rejected]) -> Table:
    """Return rejected options with their first limit; only the first ones of many."""
    table = plain_table("option", "first limit", left=2)
    for item in rejected[:MAX_REJECTED]:
        d = item.option.deployment
        table.add_row(f"{d.layout.num_ranks}× {d.hardware.name} {split_text(d.layout)} {d.weights}", item.limit)
    if len(rejected) > MAX_REJECTED:
        table.add_row("…", f"{len(rejected) - MAX_REJECTED} more with --json")
    return table


def _show_launch(plan: Plan, model: str, console: Console) -> None:
    console.print()
    console.print("Launch", style="bold")
    for command in launches(plan, model):
        console.print(f"# {command.label}" + (f": {'; '.join(command.notes)}" if command.notes else ""), style="dim")
        console.print(command.text, highlight=False, soft_wrap=True, markup=False)


def bar(share: float) -> str:
    """Return a share of 1 as a bar of eighths."""
    eighths = round(max(0.0, min(1.0, share)) * BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
