"""`mansard plan`: what it takes to serve a model, before a GPU is rented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mansard.cost.op_cost import Layout
    from mansard.cost.planner import Plan

WHAT, LOAD, HOW, OUTPUT = "What may vary", "Load and limits", "How it runs", "Output"

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A known name, Hugging Face id, config.json, directory or GGUF file.")
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="Hardware, with a count or not: h100, h100:8, l4,l40s.", rich_help_panel=WHAT, show_default="all"
    ),
]
Engine = Annotated[str, typer.Option(help="vllm, sglang, trtllm, llama.cpp or mansard.", rich_help_panel=WHAT)]
Weights = Annotated[
    str, typer.Option(help="Weight format, or several to choose from: bf16,fp8,int4.", rich_help_panel=WHAT)
]
Kv = Annotated[str, typer.Option(help="KV-cache format, or several: bf16,fp8.", rich_help_panel=WHAT)]
HardwareFile = Annotated[Path | None, typer.Option(help="TOML file with hardware of your own.", rich_help_panel=WHAT)]


def plan(
    model: Model,
    gpu: Gpu = None,
    engine: Engine = "auto",
    weights: Weights = "auto",
    kv: Kv = "auto",
    hardware_file: HardwareFile = None,
    max_devices: Annotated[
        int, typer.Option(help="Most devices of one replica.", rich_help_panel=WHAT, min=1, max=64)
    ] = 16,
    tp: Annotated[int | None, typer.Option(help="Fix the tensor-parallel size.", rich_help_panel=WHAT, min=1)] = None,
    pp: Annotated[int | None, typer.Option(help="Fix the pipeline stages.", rich_help_panel=WHAT, min=1)] = None,
    dp: Annotated[
        int | None, typer.Option(help="Fix the data-parallel attention ranks.", rich_help_panel=WHAT, min=1)
    ] = None,
    ep: Annotated[int | None, typer.Option(help="Fix the expert-parallel ranks.", rich_help_panel=WHAT, min=1)] = None,
    workload: Annotated[
        str,
        typer.Option(help="chat, rag, code, summarize, agent, reasoning, offline, or ISL/OSL.", rich_help_panel=LOAD),
    ] = "chat",
    rate: Annotated[float | None, typer.Option(help="Requests per second.", rich_help_panel=LOAD)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at once.", rich_help_panel=LOAD)] = None,
    slo: Annotated[
        str | None, typer.Option(help="Limits: ttft=450ms,tpot=40ms,p99, or an MLPerf scenario.", rich_help_panel=LOAD)
    ] = None,
    objective: Annotated[
        str, typer.Option(help="cheapest, fewest (devices) or fastest (TPOT).", rich_help_panel=LOAD)
    ] = "cheapest",
    price: Annotated[float | None, typer.Option(help="US dollars per device and hour.", rich_help_panel=LOAD)] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Longest request.", rich_help_panel=HOW, show_default="the workload's longest"),
    ] = None,
    memory_fraction: Annotated[
        float | None,
        typer.Option(help="The engine's memory fraction.", rich_help_panel=HOW, show_default="the engine's"),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one step.", rich_help_panel=HOW, show_default="the engine's", min=16)
    ] = None,
    detail: Annotated[bool, typer.Option("--detail", help="Show every op of a step.", rich_help_panel=OUTPUT)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the batch table as CSV.", rich_help_panel=OUTPUT)
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained page.", rich_help_panel=OUTPUT, dir_okay=False)
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Draw the page with an installed Chromium.", rich_help_panel=OUTPUT, dir_okay=False),
    ] = None,
) -> None:
    """Say what it takes to serve a model: does it fit, how fast, at what cost, what limits it, what to change."""
    from mansard.cost.question import OBJECTIVES
    from mansard.planning import ask

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
        detail=detail or as_json,
    )
    write(found, ask.hf_id(model), detail, as_json, as_csv, html, png)
    if not found.fits:
        raise typer.Exit(1)


def fixed_layout(tp: int | None, pp: int | None, dp: int | None, ep: int | None) -> Layout | None:
    """Return the split that was fixed by options, or None when it is free."""
    from mansard.cost.op_cost import Layout

    if tp is None and pp is None and dp is None and ep is None:
        return None
    return Layout(tp or 1, pp or 1, dp or 1, ep or 1)


def write(
    found: Plan, model: str, detail: bool, as_json: bool, as_csv: bool, html: Path | None, png: Path | None
) -> None:
    """Write the plan in the form that was asked for."""
    if html is not None or png is not None:
        from mansard.planning.html import page

        text = page(found, model)
        if html is not None:
            html.write_text(text, encoding="utf-8")
            typer.echo(f"wrote {html}", err=True)
        if png is not None:
            from mansard.planning.picture import draw

            draw(text, png)
            typer.echo(f"wrote {png}", err=True)
        return
    if as_json or as_csv:
        from mansard.planning.document import batch_csv, document

        typer.echo(
            json.dumps(document(found, model), ensure_ascii=False, indent=1) if as_json else batch_csv(found).rstrip()
        )
        return
    from rich.console import Console

    from mansard.planning.terminal import show

    show(found, model, Console(highlight=False, width=None if sys.stdout.isatty() else 100), detail)
