"""Run: plan from the values of the command line and write the answer in the form that was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mansard.cost.op_cost import Layout
from mansard.cost.question import OBJECTIVES
from mansard.planning import ask

if TYPE_CHECKING:
    from mansard.cost.planner import Plan


def run_plan(
    model: str,
    gpu: str | None = None,
    engine: str = "auto",
    weights: str = "auto",
    kv: str = "auto",
    hardware_file: Path | None = None,
    max_devices: int = 16,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    workload: str = "chat",
    rate: float | None = None,
    concurrency: int | None = None,
    slo: str | None = None,
    objective: str = "cheapest",
    price: float | None = None,
    max_model_len: int | None = None,
    memory_fraction: float | None = None,
    max_num_batched_tokens: int | None = None,
    speculation: str | None = None,
    detail: bool = False,
    as_json: bool = False,
    as_csv: bool = False,
    html: Path | None = None,
    png: Path | None = None,
) -> bool:
    """Plan, write the answer and say whether something fits.

    Raises: ValueError for a name or value that cannot be used.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    found = ask.plan(
        model,
        gpu=None if gpu is None else gpu.split(","),
        engine=engine,
        weights=weights,
        kv=kv,
        workload=workload,
        rate=rate,
        concurrency=concurrency,
        slo=slo,
        objective=next(o for o in OBJECTIVES if o == objective),
        max_model_len=max_model_len,
        memory_fraction=memory_fraction,
        num_batched_tokens=max_num_batched_tokens,
        price=price,
        layout=fixed_layout(tp, pp, dp, ep),
        max_devices=max_devices,
        hardware_file=hardware_file,
        speculation=speculation,
        detail=detail or as_json or html is not None,
    )
    source = ask.hf_id(model)
    if html is not None or png is not None:
        _draw(found, source, html, png)
    elif as_json or as_csv:
        from mansard.planning.document import batch_csv, document

        text = (
            json.dumps(document(found, source), ensure_ascii=False, indent=1) if as_json else batch_csv(found).rstrip()
        )
        print(text)
    else:
        _show(found, source, detail)
    return found.fits


def fixed_layout(tp: int | None, pp: int | None, dp: int | None, ep: int | None) -> Layout | None:
    """Return the split that was fixed by options, or None when it is free."""
    if tp is None and pp is None and dp is None and ep is None:
        return None
    return Layout(tp or 1, pp or 1, dp or 1, ep or 1)


def _show(found: Plan, source: str, detail: bool) -> None:
    from rich.console import Console

    from mansard.planning.terminal import show

    show(found, source, Console(highlight=False, width=None if sys.stdout.isatty() else 100), detail)


def _draw(found: Plan, source: str, html: Path | None, png: Path | None) -> None:
    from mansard.planning.html import page

    text = page(found, source)
    if html is not None:
        html.write_text(text, encoding="utf-8")
        print(f"wrote {html}", file=sys.stderr)
    if png is not None:
        from mansard.planning.picture import draw

        draw(text, png)
        print(f"wrote {png}", file=sys.stderr)
