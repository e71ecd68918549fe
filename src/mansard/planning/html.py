"""The plan as one self-contained page: no network, no script, readable in light and dark, by keyboard and aloud."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from mansard.cost.levers import split_text
from mansard.cost.phases import Phase
from mansard.cost.pick import Pick
from mansard.cost.planner import BatchRow, Plan
from mansard.cost.search import Rejected
from mansard.planning.document import launches
from mansard.planning.figures import frontier, latency, memory_bar, roofline
from mansard.planning.notes import NOT_MODELLED, assumptions, error_line, is_calibrated
from mansard.planning.words import deployment_text, dollars, number, percent, scaled, seconds, two_digits

SHOWN = 40  # options of a long list


def page(plan: Plan, model: str) -> str:
    """Return the whole document."""
    style = (resources.files("mansard.planning") / "page.css").read_text(encoding="utf-8")
    name = plan.question.spec.name or plan.question.spec.model_type
    body = _answer(plan, model) if plan.chosen else _refusal(plan)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Plan: {escape(name)}</title><style>{style}</style></head>"
        f"<body><main><h1>Plan for {escape(name)}</h1>{body}{_notes(plan)}</main></body></html>\n"
    )


def _answer(plan: Plan, model: str) -> str:
    chosen, found = plan.chosen, plan.estimate
    assert chosen is not None and found is not None
    deployment = chosen.deployment
    low, high = float(found.tpot_s.low), float(found.tpot_s.high)
    at = f"p{plan.question.limits.percentile:g}"
    tiles = (
        ("requests at once", number(chosen.concurrency)),
        ("output tokens/s", number(chosen.output_tokens_per_s)),
        (f"TPOT, {seconds(low)} to {seconds(high)}; {at} {seconds(chosen.tpot_s)}", seconds(float(found.tpot_s.best))),
        (f"TTFT; {at} {seconds(chosen.ttft_s)}", seconds(float(found.ttft_s.best))),
        ("a million output tokens", dollars(chosen.usd_per_million_tokens)),
        ("an hour", dollars(deployment.usd_per_hour)),
        ("bandwidth used (MBU)", f"{float(found.mbu):.0%}"),
        ("compute used (MFU)", f"{float(found.mfu):.0%}"),
    )
    cards = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in tiles)
    question = plan.question
    asked = f"{question.workload.name}: {number(question.input_tokens)} in, {number(question.output_tokens)} out"
    level = f" · service level {question.slo.name}" if question.slo else ""
    warning = "" if is_calibrated(plan) else '<p class="warn">Uncalibrated for this engine and architecture.</p>'
    return (
        f'<p class="answer">{escape(deployment_text(deployment))}</p>'
        f'<p class="sub">{escape(asked + level)} · bound by {escape(found.bound)} · objective {question.objective}</p>'
        f'{warning}<div class="tiles">{cards}</div>{_charts(plan)}'
        f"<h2>By requests at once</h2>{_batch(plan.table)}"
        f"<h2>Phases</h2>{_phases(plan)}{_levers(plan)}{_options(plan)}{_rejected(plan.rejected)}"
        f"<h2>Launch</h2>{_launch(plan, model)}"
    )


def _refusal(plan: Plan) -> str:
    closest = ""
    if plan.closest is not None:
        words = f"{deployment_text(plan.closest.option.deployment)}: {plan.closest.limit}"
        closest = f'<p class="warn">Closest: {escape(words)}</p>'
    bar = f"<h2>Memory of one device of the closest</h2>{memory_bar(plan.ledger)}" if plan.ledger else ""
    fixes = plan.fixes or ("no single change would",)
    changes = f"<h2>Single changes that would make it fit</h2>{_list(fixes)}"
    return f'<p class="answer">Nothing fits.</p>{closest}{changes}{bar}{_rejected(plan.rejected)}'


def _charts(plan: Plan) -> str:
    charts = (
        ("Memory of one device", "best estimate, GiB", memory_bar(plan.ledger) if plan.ledger else "", "wide"),
        ("Roofline", "one device; decode by batch, prefill by length", roofline(plan), ""),
        ("Latency by load", "at the percentile, with the limits", latency(plan), ""),
        ("Speed against throughput", "options that nothing beats", frontier(plan, by_cost=False), ""),
        ("Speed against cost", "options that nothing beats", frontier(plan, by_cost=True), ""),
    )
    figures = (
        f'<figure class="{kind}"><figcaption>{escape(title)} <span>{escape(words)}</span></figcaption>'
        f"{drawing}</figure>"
        for title, words, drawing, kind in charts
        if drawing
    )
    return f'<h2>Where it stands</h2><div class="charts">{"".join(figures)}</div>'


def _batch(rows: Iterable[BatchRow]) -> str:
    head = ("at once", "TTFT", "TPOT", "tok/s", "tok/s/user", "MBU", "MFU", "$/Mtok", "J/token", "limit")
    body, marks = [], []
    for row in rows:
        joules = "–" if row.joules_per_token is None else two_digits(row.joules_per_token)
        body.append(
            (
                number(row.concurrency),
                seconds(row.ttft_s),
                seconds(row.tpot_s),
                number(row.output_tokens_per_s),
                number(row.tokens_per_s_per_user),
                f"{row.mbu:.0%}",
                f"{row.mfu:.0%}",
                dollars(row.usd_per_million_tokens),
                joules,
                row.limit,
            )
        )
        marks.append(row.chosen)
    return _table(head, body, 0, marks)


def _phases(plan: Plan) -> str:
    head = ("phase", "at once", "tokens", "FLOP/byte", "ridge", "bound by", "step", "achieved")

    def row(p: Phase) -> tuple[str, ...]:
        numbers = (number(p.concurrency), number(p.num_tokens), number(p.intensity), number(p.ridge))
        return (p.name, *numbers, p.bound, seconds(p.time_s), scaled(p.achieved_flops, "FLOP/s"))

    return _table(head, [row(p) for p in plan.phases]) + "".join(_ops(p) for p in plan.phases if p.ops)


def _ops(phase: Phase) -> str:
    rows = []
    for op in phase.ops:
        meter = f'<span class="meter" style="width:{max(op.share * 120, 1):.0f}px"></span>'
        time = seconds(op.time_s) if op.time_s else "0"
        rows.append(
            f'<tr><th class="left" scope="row">{escape(op.name)}</th><td>{op.count}</td><td>{op.flops / 1e9:,.3g}</td>'
            f"<td>{(op.bytes + op.network_bytes) / 1e6:,.4g}</td><td>{number(op.intensity)}</td><td>{op.bound}</td>"
            f'<td>{time}</td><td class="left">{meter}</td><td>{op.share:.1%}</td></tr>'
        )
    head = ("op", "×", "GFLOP", "MB", "FLOP/byte", "bound", "time", "", "share")
    title = f"Ops of {phase.name}, {number(phase.concurrency)} at once"
    return f"<details><summary>{escape(title)}</summary>{_wrapped(head, ''.join(rows))}</details>"


def _levers(plan: Plan) -> str:
    if not plan.levers:
        return ""
    rows = [
        (
            lever.change,
            f"{lever.users:,} ({lever.users - lever.users_before:+,})",
            percent(lever.tpot_alone),
            percent(lever.tokens_per_s),
            "–" if lever.usd is None else percent(lever.usd),
        )
        for lever in plan.levers
    ]
    head = ("change", "at once", "TPOT alone", "tok/s", "$/Mtok")
    return f"<h2>Next levers, one change each</h2>{_table(head, rows)}"


def _options(plan: Plan) -> str:
    others = plan.alternatives[:SHOWN]
    if not others:
        return ""

    def row(p: Pick) -> tuple[str, ...]:
        d = p.deployment
        split = split_text(d.layout) + (f" ×{d.num_replicas}" if d.num_replicas > 1 else "")
        words = (f"{d.num_devices}× {d.hardware.name}", split, f"{d.weights} / {d.kv}", number(p.concurrency))
        rate = number(p.output_tokens_per_s)
        return (*words, seconds(p.tpot_s), rate, dollars(p.usd_per_million_tokens), dollars(d.usd_per_hour))

    head = ("devices", "split", "weights / KV", "at once", "TPOT", "tok/s", "$/Mtok", "$/h")
    table = _table(head, [row(p) for p in others], 2)
    return f"<details><summary>Other options ({len(plan.alternatives)})</summary>{table}</details>"


def _rejected(rejected: Sequence[Rejected]) -> str:
    if not rejected:
        return ""
    rows = "".join(
        f'<tr><th class="left" scope="row">{escape(deployment_text(r.option.deployment))}</th>'
        f'<td class="left wrap">{escape(r.limit)}</td></tr>'
        for r in rejected[: 5 * SHOWN]
    )
    table = _wrapped(("option", "first limit"), rows, 1)
    return f"<details><summary>Rejected ({len(rejected)})</summary>{table}</details>"


def _launch(plan: Plan, model: str) -> str:
    parts = []
    for command in launches(plan, model):
        notes = f" <span>{escape('; '.join(command.notes))}</span>" if command.notes else ""
        parts.append(f'<div class="engine">{escape(command.label)}{notes}</div><pre>{escape(command.text)}</pre>')
    return "".join(parts)


def _notes(plan: Plan) -> str:
    return (
        f"<h2>Assumed</h2>{_list(assumptions(plan))}<h2>Not modelled</h2>{_list(NOT_MODELLED)}"
        f"<footer>Error of the method: {escape(error_line(plan))}</footer>"
    )


def _list(lines: Iterable[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0, marks: Sequence[bool] = ()) -> str:
    """Return a table; columns up to `left` are words, marked rows stand out."""
    body = []
    for i, row in enumerate(rows):
        cells = [f'<th class="left" scope="row">{escape(row[0])}</th>']
        cells += [f"<td{_side(j, left)}>{escape(cell)}</td>" for j, cell in enumerate(row[1:], 1)]
        mark = ' class="chosen"' if marks and marks[i] else ""
        body.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return _wrapped(head, "".join(body), left)


def _side(column: int, left: int) -> str:
    return ' class="left"' if column <= left else ""


def _wrapped(head: Sequence[str], body: str, left: int = 0) -> str:
    cells = "".join(f'<th scope="col"{_side(i, left)}>{escape(h)}</th>' for i, h in enumerate(head))
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
