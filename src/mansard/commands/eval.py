"""`mansard eval`: perplexity, divergence, memory and speed across model files, KV formats and activations."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.bench.corpus import DEFAULT_TEXT
from mansard.commands import options
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from mansard.bench.evaluate import EvalSettings, Evaluation, Variant
    from mansard.bench.needle import NeedleResult

WHAT, LIMITS = "What is measured", "Limits for CI (exit status 1)"


def evaluate(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Model files of one kind; the first is the reference."),
    ] = None,
    kv: Annotated[str, typer.Option(help="KV formats.", rich_help_panel=WHAT)] = "f16,int8,int4",
    activations: Annotated[str, typer.Option(help="int8, int16, float32.", rich_help_panel=WHAT)] = "int8",
    text: Annotated[str, typer.Option(help="A UTF-8 file.", rich_help_panel=WHAT)] = DEFAULT_TEXT,
    tokens: Annotated[
        int | None, typer.Option(help="Only so many tokens of it.", rich_help_panel=WHAT, min=2, show_default="all")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens of a window.", rich_help_panel=WHAT, min=2)] = 1024,
    stride: Annotated[int, typer.Option(help="Tokens a window moves on.", rich_help_panel=WHAT, min=1)] = 512,
    batch: Annotated[str, typer.Option(help="Batch sizes to time decoding with.", rich_help_panel=WHAT)] = "1",
    needle: Annotated[
        str | None, typer.Option(help="Context lengths for the needle test, such as 256,1024.", rich_help_panel=WHAT)
    ] = None,
    threads: options.Threads = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    max_ppl_increase: Annotated[
        str | None, typer.Option(help="Over the reference, such as 1%.", rich_help_panel=LIMITS)
    ] = None,
    min_top1_agreement: Annotated[
        str | None, typer.Option(help="With the reference, such as 95%.", rich_help_panel=LIMITS)
    ] = None,
) -> None:
    """Say what a quantization costs in quality, memory and speed."""
    from mansard.bench.corpus import read_text
    from mansard.bench.evaluate import EvalSettings, evaluate, reference_of, variants

    names = models or [DEFAULT_MODEL]
    limits = parse_share(max_ppl_increase), parse_share(min_top1_agreement)
    settings = EvalSettings(context, stride, threads, tuple(int(b) for b in batch.split(",") if b))
    chosen = variants(names, kv.split(","), activations.split(","))
    rows = []
    for row in evaluate(chosen, reference_of(names[0]), read_text(text), settings, tokens):
        typer.echo(f"  {row.variant.name}: {row.perplexity.value:.4f}", err=True)
        rows.append(row)
    needles = [] if needle is None else _needles(chosen, settings, [int(n) for n in needle.split(",")])
    _show(rows, needles, text, settings)
    if json_file is not None:
        json_file.write_text(json.dumps(_as_json(rows, needles, text, settings)), encoding="utf-8")
    _hold(rows, *limits)


def parse_share(text: str | None) -> float | None:
    """Return the share that `1%` or `0.01` says.

    Raises: ValueError when it says none.
    """
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError as error:
        raise ValueError(f"{text!r} is no share; write 1% or 0.01") from error


def _needles(chosen: list[Variant], settings: EvalSettings, lengths: list[int]) -> list[NeedleResult]:
    from mansard.bench.needle import find_needles

    return [found for variant in chosen for found in find_needles(variant, settings.num_threads, lengths)]


def _show(rows: list[Evaluation], needles: list[NeedleResult], text: str, settings: EvalSettings) -> None:
    from rich import box
    from rich.table import Table

    from mansard.bench.terminal import open_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, label in enumerate(("model", "KV", "activations", "PPL", "vs. reference", "KL (nats)", "top-1", "weights")):
        table.add_column(label, justify="left" if i < 3 else "right")
    table.add_column("KV a token", justify="right")
    for size in settings.speeds:
        table.add_column(f"tok/s at {size}", justify="right")
    for row in rows:
        found = row.comparison
        table.add_row(
            *(row.variant.model, row.variant.kv, row.variant.activations, f"{row.perplexity.value:.4f}"),
            "reference" if found is None else f"{found.increase:+.3%} ± {1.96 * found.log_ratio_error:.3%}",
            "-" if found is None else f"{found.divergence.kl_mean:.2e}",
            "-" if found is None else f"{found.divergence.top1_agreement:.2%}",
            f"{row.weight_bytes / 2**20:,.1f} MiB",
            f"{row.kv_bytes_per_token / 2**10:,.2f} KiB",
            *(f"{row.tokens_per_s[size]:,.1f}" for size in settings.speeds),
        )
    console = open_console()
    console.print(table)
    low, high = rows[0].perplexity.interval
    console.print(
        f"[dim]{text}, {rows[0].perplexity.num_tokens:,} tokens scored, context {settings.context}, stride "
        f"{settings.stride}; the reference's 95 % interval is {low:.3f} to {high:.3f}[/]"
    )
    for needle in needles:
        console.print(f"needle: {needle.line()}")


def _as_json(rows: list[Evaluation], needles: list[NeedleResult], text: str, settings: EvalSettings) -> dict[str, Any]:
    from mansard.bench.environment import environment

    def row_dict(row: Evaluation) -> dict[str, Any]:
        return {**asdict(row), "ppl": row.perplexity.value, "ppl_increase": row.increase}

    return {
        "schema": "mansard-eval/1",
        "environment": environment(),
        "text": text,
        "settings": asdict(settings),
        "rows": [row_dict(row) for row in rows],
        "needles": [asdict(needle) for needle in needles],
    }


def _hold(rows: list[Evaluation], max_increase: float | None, min_agreement: float | None) -> None:
    broken = []
    for row in rows:
        if row.comparison is None:
            continue
        agreement = row.comparison.divergence.top1_agreement
        if max_increase is not None and row.increase > max_increase:
            broken.append(f"{row.variant.name}: perplexity {row.increase:+.3%}, at most {max_increase:+.3%} allowed")
        if min_agreement is not None and agreement < min_agreement:
            broken.append(f"{row.variant.name}: top-1 agreement {agreement:.2%}, at least {min_agreement:.2%} asked")
    for line in broken:
        typer.echo(f"BROKEN {line}", err=True)
    if broken:
        raise typer.Exit(1)
