"""`mansard plan`: what it takes to serve a model, before a GPU is rented."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHAT, LOAD, HOW, OUTPUT = "What may vary", "Load and limits", "How it runs", "Output"

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A known name, Hugging Face id, config.json, directory or GGUF file.")
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="Hardware, with a count or not: h100, h100:8, l4,l40s, this.", rich_help_panel=WHAT, show_default="all"
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
    speculation: Annotated[
        str | None, typer.Option(help="Drafts a step and their acceptance: 4:0.7.", rich_help_panel=HOW)
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
    given = dict(locals())
    from mansard.planning.run import run_plan

    if not run_plan(**given):
        raise typer.Exit(1)
