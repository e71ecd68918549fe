"""`mansard bench offline` and `mansard bench latency`: the engine in this process, beside the roof."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.commands import bench_options as o
from mansard.commands import options
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from mansard.bench.engine_run import EngineRun
    from mansard.bench.offline import GridPoint, OfflinePoint
    from mansard.bench.result import BenchResult
    from mansard.runtime.model import LoadedModel

Activations = Annotated[
    str,
    typer.Option(help="What quantized weights are multiplied with: int8, int16, float32.", rich_help_panel="Engine"),
]
Runs = Annotated[int, typer.Option(help="Times each point is measured.", rich_help_panel=o.LOAD, min=1)]


def offline(
    model: options.Model = DEFAULT_MODEL,
    batch: Annotated[str, typer.Option(help="Batch sizes.", rich_help_panel=o.LOAD)] = "1,4,16",
    prompt: Annotated[str, typer.Option(help="Prompt lengths.", rich_help_panel=o.LOAD)] = "128",
    output: Annotated[str, typer.Option(help="Output lengths.", rich_help_panel=o.LOAD)] = "32",
    runs: Runs = 3,
    kv_dtype: options.KvDtype = "auto",
    activations: Activations = "int8",
    threads: options.Threads = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Take every point's decode step apart, op by op.", rich_help_panel=o.OUTPUT)
    ] = False,
    append_calibration: o.AppendCalibration = None,
    json_file: o.JsonFile = None,
    html_file: o.HtmlFile = None,
    min_mbu: Annotated[
        float | None, typer.Option(rich_help_panel=o.LIMITS, help="Of the best point, such as 0.5.")
    ] = None,
    min_output_tokens_per_s: o.MinRate = None,
) -> None:
    """Run batches of several sizes and lengths through the engine: throughput, MBU and MFU."""
    from mansard.bench.offline import grid

    points = grid(_numbers("batch", batch), _numbers("prompt", prompt), _numbers("output", output))
    result, found = _measure(model, points, runs, kv_dtype, activations, threads, detail, append_calibration)
    _show(found, detail)
    if json_file is not None:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if html_file is not None:
        from mansard.bench.html import render_offline

        html_file.write_text(render_offline(result, found), encoding="utf-8")
    _hold(found, min_mbu, min_output_tokens_per_s)


def latency(
    model: options.Model = DEFAULT_MODEL,
    batch: Annotated[int, typer.Option(help="Requests at once.", rich_help_panel=o.LOAD)] = 1,
    prompt: Annotated[int, typer.Option(help="Prompt tokens.", rich_help_panel=o.LOAD)] = 128,
    output: Annotated[int, typer.Option(help="Output tokens.", rich_help_panel=o.LOAD)] = 64,
    runs: Runs = 5,
    kv_dtype: options.KvDtype = "auto",
    activations: Activations = "int8",
    threads: options.Threads = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Time every op, beside its price.", rich_help_panel=o.OUTPUT)
    ] = False,
    append_calibration: o.AppendCalibration = None,
    json_file: o.JsonFile = None,
) -> None:
    """Time one batch, and show where a token's time goes."""
    from mansard.bench.offline import GridPoint

    result, found = _measure(
        model, [GridPoint(batch, prompt, output)], runs, kv_dtype, activations, threads, detail, append_calibration
    )
    _show(found, True)
    if json_file is not None:
        json_file.write_text(result.to_json(), encoding="utf-8")


def _measure(
    model: str,
    points: list[GridPoint],
    runs: int,
    kv_dtype: str,
    activations: str,
    threads: int | None,
    detail: bool,
    calibration: Path | None,
) -> tuple[BenchResult, list[OfflinePoint]]:
    from mansard.bench.environment import environment
    from mansard.bench.offline import bench_offline, limits_for
    from mansard.bench.prompts import fresh_nonce
    from mansard.bench.result import BenchResult
    from mansard.bench.roof import host_roof
    from mansard.runtime.model import EngineOptions, load

    given = EngineOptions(kv_dtype=kv_dtype, activations=activations, num_threads=threads)  # type: ignore[arg-type]
    chosen = limits_for(points, given)
    loaded = load(model, chosen)
    roof, nonce = host_roof(threads), fresh_nonce()

    def tell(point: GridPoint) -> None:
        typer.echo(f"  {_name(point)}", err=True)

    seen: list[EngineRun] = []
    found = bench_offline(loaded, chosen, points, roof, nonce, runs, tell, detail=detail, on_engine_run=seen.append)
    target = {"model": loaded.name, "kv_dtype": kv_dtype, "activations": activations, "threads": threads}
    workload = {"points": [asdict(p) for p in points], "runs": runs, "nonce": nonce}
    extra: dict[str, Any] = {"points": [_point_dict(p) for p in found]}
    warnings = () if roof.is_calibrated else (f"shares are of a roof by {roof.source}",)
    result = BenchResult("offline", environment(), target, workload, None, warnings, extra)
    if calibration is not None:
        _append(calibration, result, found, seen, loaded)
    return result, found


def _append(
    path: Path, result: BenchResult, points: list[OfflinePoint], runs: list[EngineRun], model: LoadedModel
) -> None:
    from mansard.bench.calibration_log import append_calibration, comparison_lines, step_lines
    from mansard.bench.calibration_log import nearest_format as nearest
    from mansard.bench.offline import demand_of

    demand = demand_of(model)
    head = {"model": model.name, "weights": nearest(demand.bits_per_weight), "kv": nearest(demand.bits_per_kv_value)}
    lines = step_lines(runs, f"{result.workload['nonce']}-")
    for point in points:
        if point.step is not None:
            lines += comparison_lines(result, [point.step], _name(point.point))
    append_calibration(path, head, lines)


def _point_dict(p: OfflinePoint) -> dict[str, Any]:
    energy = None if p.energy is None else p.energy.to_dict(p.num_output_tokens)
    return {**asdict(p), "mbu": p.mbu, "mfu": p.mfu, "energy": energy}


def _show(found: list[OfflinePoint], detail: bool) -> None:
    from mansard.bench.terminal import open_console, show_headroom, show_offline, show_op_detail

    console = open_console()
    show_offline(console, found)
    for point in found if detail else found[:1]:
        if point.headroom is not None:
            show_headroom(console, point.headroom)
        if point.op_detail is not None:
            show_op_detail(console, point.op_detail)


def _hold(found: list[OfflinePoint], min_mbu: float | None, min_rate: float | None) -> None:
    from mansard.bench.statistics import Estimate
    from mansard.bench.thresholds import Threshold

    limits = []
    if min_mbu is not None:
        limits.append(Threshold("min-mbu", Estimate(max(p.mbu or 0.0 for p in found)), min_mbu, True))
    if min_rate is not None:
        best = max(p.output_tokens_per_s for p in found)
        limits.append(Threshold("min-output-tokens-per-s", Estimate(best), min_rate, True))
    for limit in limits:
        typer.echo(limit.line(), err=True)
    if not all(limit.holds for limit in limits):
        raise typer.Exit(1)


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--{name} is {text!r}; write whole numbers, such as 1,4,16") from error


def _name(point: GridPoint) -> str:
    return json.dumps(asdict(point))
