"""`mansard bench serve` and `mansard bench sweep`: loads against a running OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.commands import bench_options as o

if TYPE_CHECKING:
    from mansard.bench.load_arguments import LoadArguments
    from mansard.bench.openai_sender import AskOptions
    from mansard.bench.prompts import TextTokenizer
    from mansard.bench.records import RequestRecord
    from mansard.bench.result import BenchResult
    from mansard.bench.server_headroom import ServedOn
    from mansard.bench.sweep import SweepPoint
    from mansard.bench.thresholds import Threshold


def serve(
    url: o.Url,
    model: o.ModelName = None,
    tokenizer: o.TokenizerName = None,
    api: o.ApiName = "chat",
    api_key: o.ApiKey = None,
    timeout: o.Timeout = 600.0,
    retries: o.Retries = 0,
    workload: o.Workload = "128/64",
    trace: o.Trace = None,
    trace_speed: o.TraceSpeed = 1.0,
    requests: o.Requests = 64,
    rate: o.Rate = None,
    ramp: o.RampText = None,
    burstiness: o.Burstiness = 1.0,
    concurrency: o.Concurrency = None,
    warmup: o.Warmup = None,
    shared_prefix: o.SharedPrefix = 0,
    max_prompt: o.MaxPrompt = None,
    max_output: o.MaxOutput = None,
    seed: o.LoadSeed = 0,
    nonce: o.Nonce = None,
    slo: o.Slo = None,
    gpu: o.Gpu = None,
    priced_as: o.PricedAs = None,
    weights: o.Weights = "auto",
    kv: o.Kv = "auto",
    engine: o.Engine = "vllm",
    append_calibration: o.AppendCalibration = None,
    json_file: o.JsonFile = None,
    csv_file: o.CsvFile = None,
    html_file: o.HtmlFile = None,
    max_ttft_p99: o.Limit = None,
    max_tpot_p99: o.Limit = None,
    max_itl_p99: o.Limit = None,
    max_e2e_p99: o.Limit = None,
    min_success: o.MinShare = None,
    min_output_tokens_per_s: o.MinRate = None,
) -> None:
    """Send a load to a server and print what its users would feel."""
    from mansard.bench.arrivals import Ramp
    from mansard.bench.html import render_serve
    from mansard.bench.terminal import open_console, show_serve

    given = _load(
        workload, trace, trace_speed, requests, rate, burstiness, concurrency, warmup, shared_prefix, max_prompt,
        max_output, seed, nonce,
    )  # fmt: skip
    if ramp is not None:
        given = replace(given, ramp=Ramp.parse(ramp))
    target = _target(url, model, tokenizer, api, api_key, timeout, retries)
    if append_calibration is not None and gpu is None:
        raise ValueError("--append-calibration needs a prediction; say what the server runs on with --gpu")
    served = None if gpu is None else served_on(priced_as or target.ask.model, gpu, weights, kv, engine)
    result = _run(target, given, slo)
    show_serve(open_console(), result)
    if served is not None:
        result = _beside_prediction(result, served, append_calibration)
    _write(result, json_file, csv_file, html_file, lambda: render_serve(result))
    limits = {"ttft": max_ttft_p99, "tpot": max_tpot_p99, "itl": max_itl_p99, "e2e": max_e2e_p99}
    _hold(_thresholds(result, limits, min_success, min_output_tokens_per_s))


def sweep(
    url: o.Url,
    levels: Annotated[
        str, typer.Option(help="Rates or concurrencies, such as 1,2,4,8; or START:STOP:COUNT.", rich_help_panel=o.LOAD)
    ] = "1,2,4,8,16",
    by: Annotated[str, typer.Option(help="rate or concurrency.", rich_help_panel=o.LOAD)] = "concurrency",
    until_saturated: Annotated[bool, typer.Option(help="Stop at saturation.", rich_help_panel=o.LOAD)] = True,
    model: o.ModelName = None,
    tokenizer: o.TokenizerName = None,
    api: o.ApiName = "chat",
    api_key: o.ApiKey = None,
    timeout: o.Timeout = 600.0,
    workload: o.Workload = "128/64",
    requests: o.Requests = 32,
    burstiness: o.Burstiness = 1.0,
    warmup: o.Warmup = None,
    shared_prefix: o.SharedPrefix = 0,
    max_prompt: o.MaxPrompt = None,
    max_output: o.MaxOutput = None,
    seed: o.LoadSeed = 0,
    json_file: o.JsonFile = None,
    html_file: o.HtmlFile = None,
) -> None:
    """Raise the load level by level until the server is saturated, and mark the knee."""
    from mansard.bench.html import render_sweep
    from mansard.bench.sweep import SweepPoint, is_saturated, knee
    from mansard.bench.terminal import open_console, show_sweep, show_warnings

    if by not in ("rate", "concurrency"):
        raise ValueError(f"--by is {by!r}; it must be rate or concurrency")
    chosen = parse_levels(levels, whole=by == "concurrency")
    given = _load(
        workload, None, 1.0, requests, None, burstiness, None, warmup, shared_prefix, max_prompt, max_output, seed, None
    )
    target = _target(url, model, tokenizer, api, api_key, timeout, 0)
    points: list[SweepPoint] = []
    results: list[BenchResult] = []
    for number, level in enumerate(chosen):
        fresh = replace(given, nonce=given.nonce + number, num_requests=max(requests, int(4 * level)))
        at = fresh.at_rate(level) if by == "rate" else fresh.at_concurrency(int(level))
        results.append(_run(target, at, None))
        summary = results[-1].summary
        assert summary is not None
        points.append(SweepPoint(level, summary))
        if results[-1].extra["interrupted"] or (until_saturated and is_saturated(points, by == "rate")):
            break
    ordered = [p.latency("e2e_s", 50.0) or 0.0 for p in points]
    at_knee = knee([p.output_tokens_per_s for p in points], ordered)
    unit = "requests/s" if by == "rate" else "at once"
    console = open_console()
    show_sweep(console, points, at_knee, unit)
    show_warnings(console, dict.fromkeys(w for r in results for w in r.warnings))
    whole = _sweep_result(results, points, at_knee, by)
    _write(whole, json_file, None, html_file, lambda: render_sweep(whole, points, at_knee, unit))


def served_on(model: str, gpu: str, weights: str, kv: str, engine: str) -> ServedOn:
    """Return what a person says runs behind a URL, checked before any load is sent.

    Raises: ValueError for an unknown model or hardware, or when the two do not fit.
    """
    from mansard.bench.server_headroom import ServedOn
    from mansard.loading.model_source import load_model_spec
    from mansard.sim.host import find_deployment_hardware

    try:
        spec = load_model_spec(model)
    except ValueError as error:
        raise ValueError(f"{error}; say what the server's {model} is with --priced-as") from error
    hardware, count, profile = find_deployment_hardware(gpu)
    served = ServedOn(spec, hardware, count, weights, kv, engine, profile)
    served.priced()
    return served


def _beside_prediction(result: BenchResult, served: ServedOn, calibration: Path | None) -> BenchResult:
    """Print the server's headroom, append it to a calibration and return the result with it."""
    from mansard.bench.calibration_log import append_calibration, comparison_lines
    from mansard.bench.server_headroom import server_headroom
    from mansard.bench.terminal import open_console, show_server_headroom

    try:
        report = server_headroom(result, served)
    except ValueError as error:  # the run is worth keeping without
        typer.echo(f"mansard: {error}", err=True)
        return result
    show_server_headroom(open_console(), report)
    if calibration is not None:
        plan = report.prediction.precision
        head = {"model": report.prediction.model, "weights": plan.mlp, "kv": plan.kv}
        append_calibration(calibration, head, comparison_lines(result, report.rows))
    return replace(result, extra={**result.extra, "prediction": report.to_dict()})


def parse_levels(text: str, *, whole: bool) -> list[float]:
    """Return the levels that `1,2,4` or `1:16:5` (geometric) says.

    Raises: ValueError when it says none.
    """
    from mansard.bench.sweep import geometric_levels

    try:
        if ":" in text:
            start, stop, count = text.split(":")
            return geometric_levels(float(start), float(stop), int(count), whole=whole)
        levels = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"levels are {text!r}; write 1,2,4,8 or START:STOP:COUNT ({error})") from error
    if not levels or min(levels) <= 0 or (whole and any(level != int(level) for level in levels)):
        raise ValueError(f"levels are {text!r}; they must be above 0, and whole for a concurrency")
    return levels


@dataclass(frozen=True, slots=True)
class _Target:
    url: str
    headers: dict[str, str]
    ask: AskOptions
    tokenizer: TextTokenizer
    max_model_len: int | None


def _target(
    url: str, model: str | None, tokenizer: str | None, api: str, api_key: str | None, timeout_s: float, retries: int
) -> _Target:
    """Find out what the server serves, and a tokenizer for it."""
    from mansard.bench.openai_sender import PATHS, AskOptions
    from mansard.bench.prompts import WordTokenizer
    from mansard.bench.serve import ask_server
    from mansard.bench.tokenizers import open_tokenizer

    if api not in PATHS:
        raise ValueError(f"--api is {api!r}; it must be one of {', '.join(PATHS)}")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    info = asyncio.run(ask_server(url, headers))
    if model is None and not info.models:
        raise ValueError(f"{url} lists no model; name one with --model")
    name = model or info.models[0]
    words: TextTokenizer
    try:
        words = WordTokenizer() if tokenizer == "words" else open_tokenizer(tokenizer or name)
    except (ValueError, OSError):
        if tokenizer is not None:
            raise
        typer.echo(f"mansard: no tokenizer of {name} here; prompt lengths are estimates (give --tokenizer)", err=True)
        words = WordTokenizer()
    return _Target(url, headers, AskOptions(name, api, timeout_s, num_retries=retries), words, info.max_model_len)


def _load(
    workload: str, trace: str | None, trace_speed: float, requests: int, rate: float | None, burstiness: float,
    concurrency: int | None, warmup: int | None, shared_prefix: int, max_prompt: int | None, max_output: int | None,
    seed: int, nonce: int | None,
) -> LoadArguments:  # fmt: skip
    from mansard.bench.load_arguments import LoadArguments
    from mansard.bench.prompts import fresh_nonce
    from mansard.bench.workload_plan import LengthLimits

    return LoadArguments(
        workload=workload,
        trace=trace,
        trace_speed=trace_speed,
        num_requests=requests,
        rate_per_s=rate,
        burstiness=burstiness,
        max_concurrency=concurrency,
        num_warmup=warmup,
        num_shared_tokens=shared_prefix,
        seed=seed,
        nonce=fresh_nonce() if nonce is None else nonce,
        limits=LengthLimits(max_prompt, max_output),
    )


def _run(target: _Target, given: LoadArguments, slo: str | None) -> BenchResult:
    """Run one load with a progress bar."""
    from mansard.bench.serve import ServeRun, bench_serve
    from mansard.specs.slo import parse_slo

    if target.max_model_len is not None:
        room = target.max_model_len - 64  # for what a chat template adds
        given = replace(given, limits=replace(given.limits, max_total=max(2, room)))
    plan, described = given.plan(target.tokenizer)
    run = ServeRun(
        url=target.url,
        plan=plan,
        ask=target.ask,
        workload=described,
        headers=target.headers,
        slo=None if slo is None else parse_slo(slo),
        num_shared_tokens=given.num_shared_tokens,
    )
    counter = None if described["lengths"] == "estimated" else target.tokenizer
    with _progress(len(plan.requests)) as on_record:
        return asyncio.run(bench_serve(run, on_record, counter))


class _Bar:
    """A bar of ended requests, the failed ones counted."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, failed="")
        self._num_failed = 0

    def __enter__(self) -> Callable[[RequestRecord], None]:
        self._bar.start()
        return self._count

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _count(self, record: RequestRecord) -> None:
        self._num_failed += not record.succeeded
        failed = f"{self._num_failed} failed" if self._num_failed else ""
        self._bar.update(self._task, advance=1, failed=failed)


def _progress(total: int) -> Any:
    return _Bar(total) if sys.stderr.isatty() else nullcontext(lambda record: None)


def _write(
    result: BenchResult, json_file: Path | None, csv_file: Path | None, html_file: Path | None, page: Callable[[], str]
) -> None:
    makers = ((json_file, result.to_json), (csv_file, result.to_csv), (html_file, page))
    for path, make in makers:
        if path is not None:
            path.write_text(make(), encoding="utf-8")


def _thresholds(
    result: BenchResult, limits: dict[str, str | None], min_success: float | None, min_rate: float | None
) -> list[Threshold]:
    from mansard.bench.statistics import Estimate
    from mansard.bench.thresholds import Threshold, latency_threshold, parse_duration_s

    assert result.summary is not None
    found = [
        latency_threshold(result.summary, metric, 99.0, parse_duration_s(limit))
        for metric, limit in limits.items()
        if limit is not None
    ]
    if min_success is not None:
        found.append(Threshold("min-success", Estimate(result.summary.success.rate), min_success, True))
    if min_rate is not None:
        measured = Estimate(result.summary.output_tokens_per_s)
        found.append(Threshold("min-output-tokens-per-s", measured, min_rate, True))
    return found


def _hold(thresholds: Iterable[Threshold]) -> None:
    """Print every limit; exit with 1 when one is broken."""
    given = list(thresholds)
    for threshold in given:
        typer.echo(threshold.line(), err=True)
    if not all(t.holds for t in given):
        raise typer.Exit(1)


def _sweep_result(results: list[BenchResult], points: list[SweepPoint], knee: int | None, by: str) -> BenchResult:
    from mansard.bench.result import BenchResult as Result
    from mansard.bench.result import summary_dict

    levels = [{"level": p.level, "summary": summary_dict(p.summary), "workload": dict(r.workload)}
              for p, r in zip(points, results, strict=True)]  # fmt: skip
    extra = {"levels": levels, "by": by, "knee": None if knee is None else points[knee].level}
    first = results[0]
    warnings = tuple(dict.fromkeys(w for r in results for w in r.warnings))
    workload = {key: first.workload[key] for key in ("name", "source", "shared_prefix_tokens", "seed")}
    return Result("sweep", first.environment, first.target, workload, None, warnings, extra)
