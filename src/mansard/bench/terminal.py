"""Results in the terminal: one table a result, the measured beside the roof, and every warning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mansard.bench.compare import Difference
from mansard.bench.compared import Compared
from mansard.bench.headroom import Headroom
from mansard.bench.offline import OfflinePoint
from mansard.bench.op_detail import OpDetail
from mansard.bench.result import BenchResult
from mansard.bench.server_headroom import ServerHeadroom
from mansard.bench.statistics import Distribution
from mansard.bench.summary import Lengths, Summary
from mansard.bench.sweep import SweepPoint

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL (each token)",
    "chunk_gap_s": "frame gap",
    "e2e_s": "E2E",
    "queue_delay_s": "wait in the client",
    "ttft_from_send_s": "TTFT from send",
    "ttfb_s": "first byte",
}


PIPED_WIDTH = 120


def open_console() -> Console:
    """Return the terminal, or where there is none a page wide enough for every table."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def show_serve(console: Console, result: BenchResult) -> None:
    """Print the result of a load against a server."""
    summary = result.summary
    assert summary is not None
    console.print(f"[bold]{result.target['model']}[/]  [dim]{result.target['url']}[/]  {_load(result.workload)}")
    console.print(_facts(_summary_rows(summary, result.extra)))
    console.print(_latency_table(summary.latencies))
    if summary.opening:
        first = summary.opening["ttft_s"]
        opening = f"{first.count} requests, TTFT {ms(first.mean.value)} mean, {ms(first.maximum)} at most"
        console.print(f"[dim]opening wave, not in the table: {opening}[/]")
    show_warnings(console, result.warnings)


def show_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print what a reader should distrust."""
    for warning in warnings:
        console.print(f"[yellow]![/] {warning}")


def show_offline(console: Console, points: Sequence[OfflinePoint]) -> None:
    """Print the grid with MBU and MFU, and the roof they are shares of."""
    labels = (
        "batch",
        "prompt",
        "output",
        "TTFT",
        "TPOT",
        "prefill tok/s",
        "MFU",
        "decode tok/s",
        "MBU",
        "MFU",
        "±",
        "step priced",
    )
    table = _table(*labels)
    for p in points:
        table.add_row(
            str(p.point.batch_size),
            str(p.point.num_prompt),
            str(p.point.num_output),
            ms(p.ttft_s),
            "-" if p.tpot_s is None else ms(p.tpot_s),
            f"{p.prefill_tokens_per_s:,.0f}",
            f"{p.prefill_mfu:.0%}",
            "-" if p.decode_tokens_per_s is None else f"{p.decode_tokens_per_s:,.1f}",
            share(p.mbu),
            share(p.mfu),
            f"{p.spread / 2:.0%}",
            "-" if p.step is None else f"{ms(p.step.predicted)} ({p.step.error:+.0%})",
        )
    console.print(table)
    known = next((p.headroom for p in points if p.headroom is not None), None)
    if known is not None:
        name, peak = known.number_format, known.roof.peak(known.number_format)[1]
        bandwidth = known.roof.read_bytes_per_s / 1e9
        console.print(f"[dim]roof: {bandwidth:.1f} GB/s, {peak / 1e12:.2f} T{name} op/s; {known.roof.source}[/]")
    for line in dict.fromkeys(_energy_text(p) for p in points):
        console.print(f"[dim]energy{line}[/]")


def _energy_text(point: OfflinePoint) -> str:
    energy, batch = point.energy, point.point.batch_size
    if energy is None or energy.joules is None:
        return f": {energy.source if energy else 'not measured'}"
    return f" at batch {batch}: {energy.text(point.num_output_tokens)}"


def show_headroom(console: Console, report: Headroom) -> None:
    """Print where a decode step's time goes, and the sentence that follows from it."""
    table = _table("where a decode step's time goes", "ms", "share")
    rows = {
        "floor: memory bandwidth": report.bandwidth_floor_s,
        "floor: compute": report.compute_floor_s,
        "kernels beyond the floor": report.kernel_s,
        "sampling": report.sampling_s,
        "scheduling and host": report.host_s,
        "measured step": report.measured_s,
        "queueing, beside the step": report.queueing_s,
    }
    for label, seconds in rows.items():
        table.add_row(label, f"{seconds * 1e3:.3f}", f"{seconds / report.measured_s:.0%}")
    console.print(table)
    console.print(report.sentence())


def show_op_detail(console: Console, detail: OpDetail) -> None:
    """Print each kind of op, measured beside priced and the roof, and the sentence that follows from it."""
    labels = ("op", "n", "measured ms", "share", "priced ms", "priced / measured", "MB", "of the roof", "bound")
    table = _table(*labels)
    for row in detail.rows:
        table.add_row(
            row.kind,
            str(row.count),
            f"{row.measured_s * 1e3:.3f}",
            f"{detail.share(row):.0%}",
            f"{row.priced_s * 1e3:.3f}",
            f"{row.priced_s / row.measured_s:.2f}" if row.measured_s else "-",
            f"{row.bytes / 1e6:,.2f}",
            f"{row.reached:.0%}",
            row.bound,
        )
    console.print(table)
    console.print(detail.sentence())


def show_server_headroom(console: Console, report: ServerHeadroom) -> None:
    """Print a server's predicted and measured numbers, where a token's time goes, and the sentence that follows."""
    found = report.prediction
    devices = f"{found.num_devices} × {found.hardware}"
    trust = "" if found.calibrated else ", uncalibrated"
    console.print(
        f"[bold]{found.model}[/] on {devices}, {found.precision.mlp} weights [dim]({found.profile}{trust})[/]"
    )
    show_compared(console, report.rows)
    table = _table("where a token's time goes", "ms", "share")
    measured_s = report.row("tpot_s").measured
    for label, seconds in {**report.parts, "measured TPOT": measured_s}.items():
        table.add_row(label, f"{seconds * 1e3:.3f}", f"{seconds / measured_s:.0%}")
    console.print(table)
    expected = f"expected {found.mbu:.0%} and {found.mfu:.0%}"
    console.print(f"MBU {report.mbu:.0%}, MFU {report.mfu:.0%} of {found.hardware}'s peaks ({expected})")
    console.print(report.sentence())


def show_compared(console: Console, rows: Sequence[Compared]) -> None:
    """Print predicted, measured and error, and whether the measured number lies in the interval."""
    table = _table("", "predicted", "interval", "measured", "error", "")
    for row in rows:
        shown = _rate if row.metric.endswith("_per_s") else ms
        known = row.low is not None and row.high is not None
        interval = f"{shown(row.low or 0.0)} … {shown(row.high or 0.0)}" if known else "-"
        verdict = {True: "within", False: "outside", None: ""}[row.is_within]
        table.add_row(row.metric, shown(row.predicted), interval, shown(row.measured), f"{row.error:+.0%}", verdict)
    console.print(table)


def _rate(value: float) -> str:
    return f"{value:,.1f}/s"


def show_sweep(console: Console, points: Sequence[SweepPoint], knee: int | None, level: str) -> None:
    """Print a sweep, its knee marked."""
    table = _table(
        level, "req/s", "out tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "E2E p50", "success", ""
    )
    for i, point in enumerate(points):
        cells = [point.latency(m, q) for m, q in (("ttft_s", 50), ("ttft_s", 99), ("tpot_s", 50), ("tpot_s", 99))]
        cells.append(point.latency("e2e_s", 50))
        table.add_row(
            f"{point.level:g}",
            f"{point.summary.requests_per_s:.2f}",
            f"{point.output_tokens_per_s:,.1f}",
            *("-" if c is None else ms(c) for c in cells),
            f"{point.summary.success.rate:.1%}",
            "knee" if i == knee else "",
        )
    console.print(table)


def show_differences(console: Console, differences: Sequence[Difference]) -> None:
    """Print two results side by side."""
    colours = {"better": "green", "worse": "red"}
    table = _table("metric", "before", "after", "after / before", "")
    for d in differences:
        is_time = "_per_s" not in d.metric
        cells = [ms(e.value) if is_time else f"{e.value:,.2f}" for e in (d.before, d.after)]
        verdict = "" if d.verdict == "unknown" else d.verdict
        table.add_row(d.metric, *cells, f"{d.ratio:.3f}", f"[{colours.get(d.verdict, 'dim')}]{verdict}[/]")
    console.print(table)


def ms(seconds: float) -> str:
    """Return a duration in milliseconds with the digits that matter."""
    value = seconds * 1e3
    return f"{value:,.0f} ms" if abs(value) >= 100 else f"{value:.2f} ms"


def share(value: float | None) -> str:
    """Return a share in percent, or a dash."""
    return "-" if value is None else f"{value:.0%}"


def _load(workload: Mapping[str, Any]) -> str:
    rate, concurrency = workload.get("rate_req_s"), workload.get("max_concurrency")
    driven = f"{rate:g} req/s" if rate else f"{concurrency} at once" if concurrency else "at the trace's times"
    driven = workload.get("ramp") or driven
    return f"[cyan]{workload['name']}[/], {workload['num_requests']} requests, {driven}"


def _summary_rows(summary: Summary, extra: Mapping[str, Any]) -> dict[str, str]:
    causes = ", ".join(f"{count} {cause}" for cause, count in summary.success.causes.items())
    done = summary.success
    rows = {
        "success": f"{done.rate:.1%} ({done.num_succeeded} of {done.num_succeeded + done.num_failed})"
        + (f": {causes}" if causes else ""),
        "duration": f"{summary.duration_s:.2f} s",
        "throughput": f"{summary.requests_per_s:.2f} req/s, {summary.output_tokens_per_s:,.1f} output tokens/s, "
        f"{summary.total_tokens_per_s:,.1f} in all",
    }
    if summary.output_tokens_per_s_per_user is not None:
        rows["per user"] = f"{summary.output_tokens_per_s_per_user:,.1f} tokens/s (1 / mean TPOT)"
    for label, lengths in (("prompts", summary.prompt_lengths), ("outputs", summary.output_lengths)):
        if lengths is not None:
            rows[label] = _length_text(lengths)
    if summary.templated_extra_tokens:
        rows["template"] = f"adds {summary.templated_extra_tokens:.1f} tokens to a prompt, the same for all"
    if summary.goodput is not None:
        good = summary.goodput
        rows["goodput"] = (
            f"{good.requests_per_s:.2f} req/s, {good.attainment:.1%} of {good.num_eligible} "
            f"(one-token reply: TPOT {good.single_token})"
        )
    if summary.little is not None:
        little = summary.little
        rows["in flight"] = f"{little.in_flight:.1f} on average; λ·W = {little.rate_per_s * little.time_s:.1f}"
    rows.update(_extra_rows(extra))
    return rows


def _extra_rows(extra: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    if extra.get("prefix_cache"):
        rows["prefix cache"] = (
            f"{extra['prefix_cache']['rate']:.2%} of prompt tokens found ({extra['prefix_cache']['source']})"
        )
    if extra.get("preemptions"):
        rows["preemptions"] = str(extra["preemptions"])
    if extra.get("energy"):
        energy, each = extra["energy"], extra["energy"]["joules_per_output_token"]
        rows["energy"] = energy["source"] if each is None else f"{each:,.3g} J/token ({energy['source']})"
    if extra.get("client"):
        client = extra["client"]
        rows["client's own cost"] = (
            f"{client['cpu_share']:.0%} of a core, {client['cpu_s_per_request'] * 1e6:,.0f} µs a request"
        )
    return rows


def _length_text(lengths: Lengths) -> str:
    text = f"{lengths.mean:,.1f} tokens on average (min {lengths.minimum:,}, max {lengths.maximum:,})"
    return text if lengths.target_mean is None else f"{text}, {lengths.target_mean:,.1f} asked for"


def _latency_table(found: Mapping[str, Distribution]) -> Table:
    names = list(next(iter(found.values())).percentiles) if found else []
    table = _table("", "mean", *names, "p99 within", "n")
    for key, label in SHOWN.items():
        if key not in found:
            continue
        d = found[key]
        tail = d.percentiles.get("p99")
        known = tail is not None and tail.low is not None and tail.high is not None
        interval = f"{ms(tail.low or 0.0)} … {ms(tail.high or 0.0)}" if tail is not None and known else "too few"
        table.add_row(label, ms(d.mean.value), *(ms(e.value) for e in d.percentiles.values()), interval, f"{d.count:,}")
    return table


def _facts(rows: Mapping[str, str]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan")
    table.add_column()
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def _table(*labels: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, label in enumerate(labels):
        table.add_column(label, justify="left" if i == 0 else "right")
    return table
