"""A result as one HTML file: no scripts, no links, charts as inline SVG in the style of the simulator's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from mansard.bench import metrics
from mansard.bench.offline import OfflinePoint
from mansard.bench.records import Phase, RequestRecord
from mansard.bench.result import BenchResult
from mansard.bench.roofline_chart import roofline_chart
from mansard.bench.summary import Summary
from mansard.bench.sweep import SweepPoint
from mansard.bench.terminal import SHOWN, ms
from mansard.sim.report import STYLE
from mansard.sim.svg import MAX_POINTS, Mark, Series, line_chart

Charts = list[str]


def render_serve(result: BenchResult) -> str:
    """Return the page of a load against a server: distributions, and the run over time."""
    assert result.summary is not None
    measured = [r for r in result.records if r.phase is Phase.MEASURED and r.succeeded]
    table = _latency_table(result.summary)
    return _page(
        result, _cards(_facts(result.summary)), [*_distributions(measured), *_timelines(result.records)], table
    )


def render_sweep(result: BenchResult, points: Sequence[SweepPoint], knee: int | None, level: str) -> str:
    """Return the page of a sweep: latency over throughput, the knee marked."""
    rates = [p.output_tokens_per_s for p in points]
    marks = [] if knee is None else [Mark(f"knee at {points[knee].level:g} {level}", rates[knee])]
    charts = [
        _over_throughput("Time to first token over throughput", points, "ttft_s", marks),
        _over_throughput("Time per output token over throughput", points, "tpot_s", marks),
        _over_throughput("End to end over throughput", points, "e2e_s", marks),
        line_chart(
            "Throughput over load",
            [Series("output tokens/s", [p.level for p in points], rates)],
            level,
            "tokens per second",
        ),
    ]
    best = max(rates, default=0.0)
    cards = _cards(
        [(f"{best:,.0f}", "output tokens/s at most"), *([] if knee is None else [_knee(points[knee], level)])]
    )
    return _page(result, cards, charts, _sweep_table(points, level))


def render_offline(result: BenchResult, points: Sequence[OfflinePoint]) -> str:
    """Return the page of a grid: throughput and shares of the roof by batch size."""
    lengths = sorted({(p.point.num_prompt, p.point.num_output) for p in points})

    def lines(value: Callable[[OfflinePoint], float | None]) -> list[Series]:
        found = []
        for prompt, output in lengths:
            chosen = [p for p in points if (p.point.num_prompt, p.point.num_output) == (prompt, output)]
            known = sorted((p.point.batch_size, v) for p in chosen if (v := value(p)) is not None)
            found.append(Series(f"{prompt}/{output}", [float(b) for b, _ in known], [v for _, v in known]))
        return found

    charts = [
        line_chart("Decoding", lines(lambda p: p.decode_tokens_per_s), "batch size", "tokens per second"),
        line_chart("Bandwidth used (MBU)", lines(lambda p: p.mbu), "batch size", "share of the roof", percent=True),
        line_chart("Arithmetic used (MFU)", lines(lambda p: p.mfu), "batch size", "share of the roof", percent=True),
        line_chart("Time per output token", lines(lambda p: p.tpot_s), "batch size", "seconds"),
        roofline_chart([p.headroom for p in points if p.headroom is not None]),
    ]
    best = max(points, key=lambda p: p.output_tokens_per_s)
    cards = _cards([(f"{best.output_tokens_per_s:,.0f}", f"output tokens/s at batch {best.point.batch_size}")])
    return _page(result, cards, charts, "")


def _page(result: BenchResult, cards: str, charts: Charts, table: str) -> str:
    where, target = result.environment, result.target
    head = escape(f"{target.get('model', '')} · bench {result.kind}")
    made = f"{where['processor']}, {where['num_cores']} cores · mansard {where['mansard']} · {where['created']}"
    asked = ", ".join(
        f"{key} {_in_words(value)}" for key, value in result.workload.items() if value not in (None, "", 0)
    )
    warnings = "".join(f"<li>{escape(w)}</li>" for w in result.warnings)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{head}</title><style>{STYLE}</style></head><body><h1>{head}</h1>"
        f'<p class="sub">{escape(made)}<br>{escape(asked)}<br><code>{escape(where["command"])}</code></p>'
        f'<div class="cards">{cards}</div><ul>{warnings}</ul><div class="charts">{"".join(charts)}</div>'
        f"{table}</body></html>\n"
    )


def _facts(summary: Summary) -> list[tuple[str, str]]:
    shown = [
        (f"{summary.success.rate:.1%}", "of requests succeeded"),
        (f"{summary.output_tokens_per_s:,.1f}", "output tokens/s"),
        (f"{summary.requests_per_s:.2f}", "requests/s"),
    ]
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        found = summary.latencies.get(name)
        if found is not None:
            tail = ms(found.percentile(99).value)
            shown.append((ms(found.percentile(50).value), f"{label} p50 (p99 {tail})"))
    if summary.goodput is not None:
        shown.append(
            (f"{summary.goodput.requests_per_s:.2f}/s", f"goodput ({summary.goodput.attainment:.1%} meet the SLO)")
        )
    return shown


def _knee(point: SweepPoint, level: str) -> tuple[str, str]:
    return f"{point.output_tokens_per_s:,.0f}", f"output tokens/s at the knee ({point.level:g} {level})"


def _cards(shown: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<div class="card"><b>{escape(v)}</b><span>{escape(n)}</span></div>' for v, n in shown)


def _distributions(measured: Sequence[RequestRecord]) -> Charts:
    def values(metric: Callable[[RequestRecord], float | None]) -> list[float]:
        return [v for r in measured if (v := metric(r)) is not None]

    gaps = [gap for r in measured if metrics.itl_is_measurable(r) for gap in metrics.itl_s(r)]
    first = [_cdf("TTFT", values(metrics.ttft_s)), _cdf("E2E", values(metrics.e2e_s))]
    later = [_cdf("TPOT", values(metrics.tpot_s)), _cdf("ITL", gaps)]
    titles = ("Time to first token, end to end", "Time per output token, between tokens")
    return [
        line_chart(title, series, "seconds", "share", log_x=True, y_max=1.0, percent=True)
        for title, series in zip(titles, (first, later), strict=True)
    ]


def _cdf(name: str, values: Iterable[float]) -> Series:
    ordered = sorted(v for v in values if v > 0.0)  # a logarithmic axis has no zero
    count = min(MAX_POINTS, len(ordered))
    places = [round((i + 1) / count * len(ordered)) - 1 for i in range(count)]
    return Series(name, [ordered[p] for p in places], [(p + 1) / len(ordered) for p in places])


def _timelines(records: Sequence[RequestRecord]) -> Charts:
    if not records:
        return []
    start = min(r.scheduled_s for r in records)
    ordered = sorted((r.scheduled_s - start, t) for r in records if (t := metrics.ttft_s(r)) is not None)
    step = max(1, len(ordered) // MAX_POINTS)
    first = Series("TTFT", [t for t, _ in ordered[::step]], [v for _, v in ordered[::step]])
    return [
        line_chart("Time to first token over the run", [first], "seconds", "seconds"),
        line_chart("Requests in flight", [_in_flight(records, start)], "seconds", "requests", stepped=True),
    ]


def _in_flight(records: Sequence[RequestRecord], start: float) -> Series:
    changes = sorted(
        [(r.sent_s - start, 1) for r in records if r.sent_s is not None] + [(r.end_s - start, -1) for r in records]
    )
    times, counts, running = [], [], 0
    for time_s, change in changes:
        running += change
        times.append(time_s)
        counts.append(float(running))
    step = max(1, len(times) // MAX_POINTS)
    return Series("in flight", times[::step], counts[::step])


def _over_throughput(title: str, points: Sequence[SweepPoint], metric: str, marks: Sequence[Mark]) -> str:
    series = []
    for q in (50.0, 99.0):
        known = sorted((p.output_tokens_per_s, v) for p in points if (v := p.latency(metric, q)) is not None)
        series.append(Series(f"p{q:g}", [x for x, _ in known], [v for _, v in known]))
    return line_chart(title, series, "output tokens per second", "seconds", marks=marks)


def _latency_table(summary: Summary) -> str:
    rows = []
    for key, label in SHOWN.items():
        found = summary.latencies.get(key)
        if found is None:
            continue
        cells = [ms(found.mean.value), *(ms(e.value) for e in found.percentiles.values()), f"{found.count:,}"]
        rows.append(f"<tr><td>{escape(label)}</td>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    names = next(iter(summary.latencies.values())).percentiles if summary.latencies else ()
    head = "".join(f"<th>{name}</th>" for name in ("", "mean", *names, "n"))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _sweep_table(points: Sequence[SweepPoint], level: str) -> str:
    head = "".join(
        f"<th>{escape(h)}</th>" for h in (level, "req/s", "output tokens/s", "TTFT p99", "TPOT p99", "success")
    )
    rows = []
    for p in points:
        latencies = [p.latency(m, 99.0) for m in ("ttft_s", "tpot_s")]
        cells = [f"{p.level:g}", f"{p.summary.requests_per_s:.2f}", f"{p.output_tokens_per_s:,.1f}"]
        cells += ["-" if v is None else ms(v) for v in latencies] + [f"{p.summary.success.rate:.1%}"]
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _in_words(value: object) -> str:
    """Return a workload's value for people: a grid's points as batch × prompt / output."""
    if isinstance(value, list) and value and all(isinstance(point, dict) for point in value):
        return " and ".join(f"{p.get('batch_size')} × {p.get('num_prompt')}/{p.get('num_output')}" for p in value)
    return str(value)
