"""The options that the bench commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PREDICTED = "Predicted beside measured"
LOAD, SERVER, OUTPUT, LIMITS = "Load", "Server", "Output", "Limits for CI (exit status 1)"

Url = Annotated[str, typer.Argument(metavar="URL", help="Server's address, such as http://127.0.0.1:8000.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="Name to ask for.", rich_help_panel=SERVER, show_default="the server's first"),
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Model files whose tokenizer makes the prompts; `words` counts common words instead.",
        rich_help_panel=SERVER,
        show_default="the model's",
    ),
]
ApiName = Annotated[str, typer.Option("--api", help="chat or completions.", rich_help_panel=SERVER)]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Bearer token.", rich_help_panel=SERVER)
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds for one request.", rich_help_panel=SERVER)]
Retries = Annotated[int, typer.Option("--retries", help="Tries again after a 429 or 503.", rich_help_panel=SERVER)]
Workload = Annotated[
    str, typer.Option("--workload", help="A named workload, or PROMPT/OUTPUT tokens.", rich_help_panel=LOAD)
]
Trace = Annotated[
    str | None, typer.Option("--trace", help="CSV or JSONL of times and lengths to replay.", rich_help_panel=LOAD)
]
TraceSpeed = Annotated[float, typer.Option("--trace-speed", help="2 replays twice as fast.", rich_help_panel=LOAD)]
Requests = Annotated[int, typer.Option("--requests", "-n", help="Requests to measure.", rich_help_panel=LOAD)]
Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second: an open loop.", rich_help_panel=LOAD)]
RampText = Annotated[
    str | None,
    typer.Option("--ramp", help="START:END:SECONDS, a rising or falling rate: an open loop.", rich_help_panel=LOAD),
]
Burstiness = Annotated[
    float, typer.Option("--burstiness", help="1: Poisson; below: burstier; inf: constant.", rich_help_panel=LOAD)
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", help="Requests at once; caps an open loop.", rich_help_panel=LOAD),
]
Warmup = Annotated[
    int | None,
    typer.Option(
        "--warmup", help="Requests before those measured.", rich_help_panel=LOAD, show_default="the opening wave"
    ),
]
SharedPrefix = Annotated[
    int, typer.Option("--shared-prefix", help="Tokens that all prompts share.", rich_help_panel=LOAD)
]
MaxPrompt = Annotated[
    int | None, typer.Option("--max-prompt", help="Cut longer prompts to this.", rich_help_panel=LOAD)
]
MaxOutput = Annotated[
    int | None, typer.Option("--max-output", help="Cut longer outputs to this.", rich_help_panel=LOAD)
]
LoadSeed = Annotated[int, typer.Option("--seed", help="Of lengths and times.", rich_help_panel=LOAD)]
Nonce = Annotated[int | None, typer.Option("--nonce", help="Of texts.", rich_help_panel=LOAD, show_default="fresh")]
Slo = Annotated[
    str | None, typer.Option("--slo", help="Limits for goodput: ttft=450ms,tpot=40ms.", rich_help_panel=LOAD)
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", help="What it runs on, h100:2 or host: predict beside measuring.", rich_help_panel=PREDICTED),
]
PricedAs = Annotated[
    str | None,
    typer.Option(
        "--priced-as", help="Architecture, as for plan.", rich_help_panel=PREDICTED, show_default="the model's name"
    ),
]
Weights = Annotated[str, typer.Option("--weights", help="Weight format.", rich_help_panel=PREDICTED)]
Kv = Annotated[str, typer.Option("--kv", help="KV-cache format.", rich_help_panel=PREDICTED)]
Engine = Annotated[
    str, typer.Option("--engine", help="vllm, sglang, trtllm, llama.cpp or mansard.", rich_help_panel=PREDICTED)
]
AppendCalibration = Annotated[
    Path | None,
    typer.Option(
        "--append-calibration", help="Append predicted, measured and error as JSON lines.", rich_help_panel=OUTPUT
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.", rich_help_panel=OUTPUT)]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="Write one line a request.", rich_help_panel=OUTPUT)]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a page with charts.", rich_help_panel=OUTPUT)]
Limit = Annotated[str | None, typer.Option(rich_help_panel=LIMITS, help="Such as 450ms.")]
MinShare = Annotated[float | None, typer.Option(rich_help_panel=LIMITS, help="A share, such as 0.99.")]
MinRate = Annotated[float | None, typer.Option(rich_help_panel=LIMITS, help="Output tokens per second.")]
