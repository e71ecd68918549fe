"""`mansard simulate`: what a deployment would do under real traffic, by the engine's own scheduler on virtual time."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mansard.commands.simulate_replay import calibrated, show_replay
from mansard.commands.simulate_table import comparison_table, facts, latency_table
from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.parallelism import check_layout
from mansard.loading.model_source import load_model_spec
from mansard.sim.deployment import Deployment, Disaggregation
from mansard.sim.experiment import Experiment, TrafficPlan
from mansard.sim.host import find_deployment_hardware
from mansard.sim.outcome import SimulationResult
from mansard.sim.summary import Summary, summarize
from mansard.sim.sweep import highest_rate, run_all
from mansard.specs.model import ModelSpec
from mansard.specs.slo import Slo, parse_slo

WHERE, WHAT, HOW, OUTPUT = "Deployment", "Traffic", "Scheduling", "Output"
PLAIN_WIDTH = 140  # of a table that goes to a file or a pipe
SWEEP_POINTS = 8  # of a range of rates


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True, slots=True)
class _Choices:
    """The options that are lists: their product is what is simulated."""

    gpus: list[str]
    rates: list[float | None]
    policies: list[str]
    reservations: list[str]


def simulate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A preset, config.json, directory or GGUF file.")] = "",
    gpu: Annotated[
        str, _option(WHERE, "Hardware and count, as h100-sxm:8; several with commas; host.", "--gpu", "--gpus")
    ] = "host",
    tp: Annotated[int | None, _option(WHERE, "Tensor parallel size.", show_default="all devices of a replica")] = None,
    pp: Annotated[int, _option(WHERE, "Pipeline parallel size.")] = 1,
    dp: Annotated[int, _option(WHERE, "Data-parallel attention ranks of a replica.")] = 1,
    ep: Annotated[int, _option(WHERE, "Expert parallel size.")] = 1,
    replicas: Annotated[int | None, _option(WHERE, "Copies of the model.", show_default="as many as fit")] = None,
    router: Annotated[str, _option(WHERE, "round-robin, least-loaded or prefix-aware.")] = "round-robin",
    disaggregate: Annotated[
        str | None, _option(WHERE, "Prefill and decode replicas apart, such as 1:3, over the inter-node link.")
    ] = None,
    link_gb_s: Annotated[float | None, _option(WHERE, "That link's GB/s of one device.")] = None,
    weights: Annotated[str, _option(WHERE, "Weight format.")] = "bf16",
    kv_dtype: Annotated[str, _option(WHERE, "KV-cache format.")] = "bf16",
    engine: Annotated[str, _option(WHERE, "Whose kernels and overheads: vllm, sglang, trtllm, mansard …")] = "vllm",
    profile: Annotated[Path | None, _option(WHERE, "Fitted factors, written by mansard calibrate.")] = None,
    memory_fraction: Annotated[float | None, _option(WHERE, "Of device memory.", show_default="the engine's")] = None,
    trace: Annotated[str | None, _option(WHAT, "azure-conv, azure-code, mooncake, or a CSV or JSONL file.")] = None,
    workload: Annotated[str, _option(WHAT, "A named workload or PROMPT/OUTPUT tokens, without a trace.")] = "chat",
    rate: Annotated[str | None, _option(WHAT, "Requests/s: 8, 2,4,8 or 1:20.", show_default="the trace's")] = None,
    concurrency: Annotated[int | None, _option(WHAT, "Users of a closed loop, instead of a rate.")] = None,
    num_requests: Annotated[int | None, _option(WHAT, "Requests.", show_default="the trace, at most 5,000")] = None,
    arrivals: Annotated[str, _option(WHAT, "poisson, gamma, constant, diurnal or burst.")] = "poisson",
    burstiness: Annotated[float, _option(WHAT, "Variation of the gaps between arrivals; 1 is Poisson.")] = 1.0,
    period: Annotated[float, _option(WHAT, "Seconds of a diurnal period.")] = 3600.0,
    turns: Annotated[int, _option(WHAT, "Turns of each conversation.")] = 1,
    think: Annotated[float, _option(WHAT, "Seconds a user thinks between turns or requests.")] = 0.0,
    shared_prefix: Annotated[int, _option(WHAT, "Tokens of a system prompt that all share.")] = 0,
    priorities: Annotated[int, _option(WHAT, "Priority classes, drawn at random.")] = 1,
    seed: Annotated[int, _option(WHAT, "Of everything random.")] = 0,
    policy: Annotated[str, _option(HOW, "continuous, dynamic, static; several with commas.")] = "continuous",
    kv: Annotated[str, _option(HOW, "paged, contiguous; several with commas.")] = "paged",
    block_size: Annotated[int, _option(HOW, "Tokens of a KV block.")] = 16,
    max_num_batched_tokens: Annotated[int | None, _option(HOW, "Token budget of a step.")] = None,
    max_num_seqs: Annotated[int | None, _option(HOW, "Most sequences of a step.")] = None,
    max_model_len: Annotated[int | None, _option(HOW, "Longest request.", show_default="what comes needs")] = None,
    chunked_prefill: Annotated[bool, _option(HOW, "Split long prompts over steps.")] = True,
    chunk: Annotated[int | None, _option(HOW, "Most tokens of one prompt in a step.")] = None,
    prefix_caching: Annotated[
        bool | None, _option(HOW, "Reuse shared prefixes.", "--prefix-caching/--no-prefix-caching",
                             show_default="on if prompts share any")
    ] = None,
    batch_size: Annotated[int | None, _option(HOW, "Batch of the static and dynamic policies.")] = None,
    batch_window: Annotated[float, _option(HOW, "Seconds that a dynamic batch waits.")] = 0.1,
    slo: Annotated[str | None, _option(HOW, "ttft=450ms,tpot=40ms,p99 or a preset's name.")] = None,
    find_rate: Annotated[bool, _option(HOW, "Search the highest rate that meets the SLO.")] = False,
    replay: Annotated[Path | None, _option(WHAT, "Run a recorded run.jsonl again instead.")] = None,
    workers: Annotated[int, _option(OUTPUT, "Processes of a sweep.")] = os.cpu_count() or 1,
    ray: Annotated[str | None, _option(OUTPUT, "Address of a Ray cluster for a sweep, or local.")] = None,
    as_json: Annotated[bool, _option(OUTPUT, "Print JSON.", "--json")] = False,
    csv: Annotated[Path | None, _option(OUTPUT, "Write the requests as CSV.")] = None,
    trace_out: Annotated[Path | None, _option(OUTPUT, "Write a Chrome/Perfetto trace of the steps.")] = None,
    html: Annotated[Path | None, _option(OUTPUT, "Write a report with charts.")] = None,
) -> None:  # fmt: skip
    """Simulate a deployment under traffic: latencies, goodput, batch, cache and cost."""
    limits = None if slo is None else parse_slo(slo)
    if burstiness != 1.0 and arrivals == "poisson":
        arrivals = "gamma"
    choices = _Choices(_split(gpu), _rates(rate), _split(policy), _split(kv))
    plan = TrafficPlan(
        trace=trace, workload=workload, rate_req_s=choices.rates[0], num_users=concurrency, count=num_requests,
        arrivals=arrivals, cv=burstiness, period_s=period, num_turns=turns, think_s=think,  # type: ignore[arg-type]
        shared_prefix_tokens=shared_prefix, num_priorities=priorities, seed=seed,
    )  # fmt: skip
    settings = {
        "max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len, "enable_chunked_prefill": chunked_prefill,
        "long_prefill_token_threshold": chunk, "enable_prefix_caching": prefix_caching, "batch_size": batch_size,
        "enable_priority": priorities > 1,
    }  # fmt: skip
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    if replay is not None:
        show_replay(console, replay, model, gpu, (weights, kv_dtype), tp, engine, profile, as_json)
        return
    if not model:
        raise ValueError("name a model, for example `mansard simulate llama-3.1-8b --gpu h100-sxm`")
    spec = load_model_spec(model)
    precision = PrecisionPlan.published(spec, weights, kv_dtype)

    def deployment(text: str) -> Deployment:
        found = _deployment(
            spec, text, (tp, pp, dp, ep), replicas, precision, engine, memory_fraction, disaggregate, link_gb_s
        )
        found = replace(found, block_size=block_size)
        return found if profile is None else calibrated(found, profile)

    experiments = _experiments(choices, deployment, plan, settings, batch_window, router, limits)
    if find_rate:
        _find_rate(console, experiments, as_json)
    elif len(experiments) > 1:
        _sweep(console, experiments, workers, ray, as_json)
    else:
        _one(console, experiments[0], as_json, _Files(csv, trace_out, html))


@dataclass(frozen=True, slots=True)
class _Files:
    """What is written beside the table."""

    csv: Path | None
    trace: Path | None
    html: Path | None

    def write(self, experiment: Experiment, result: SimulationResult, summary: Summary) -> None:
        """Write those that were asked for."""
        from mansard.sim.export import write_csv, write_perfetto
        from mansard.sim.report import write_report

        if self.csv is not None:
            write_csv(self.csv, result)
        if self.trace is not None:
            write_perfetto(self.trace, result)
        if self.html is not None:
            write_report(self.html, experiment, result, summary)


def _one(console: Console, experiment: Experiment, as_json: bool, files: _Files) -> None:
    with _progress(experiment, not as_json) as progress:
        result = experiment.run(progress)
    summary = summarize(result, experiment.slo)
    files.write(experiment, result, summary)
    if as_json:
        _print_json({"deployment": experiment.deployment.describe(), **summary.as_dict()})
        return
    _print_head(console, experiment)
    console.print(latency_table(summary))
    console.print()
    for name, text in facts(summary):
        console.print(f"[bold]{name:<11}[/bold] {text}", highlight=False)


def _sweep(console: Console, experiments: list[Experiment], workers: int, ray: str | None, as_json: bool) -> None:
    rows: list[tuple[str, Summary]] = []
    for experiment, summary in run_all(experiments, workers, ray):
        rows.append((experiment.label, summary))
        if sys.stderr.isatty() and not as_json:
            print(f"\r{len(rows)}/{len(experiments)}", end="", file=sys.stderr)
    if as_json:
        _print_json([{"label": label, **summary.as_dict()} for label, summary in rows])
        return
    _print_head(console, experiments[0])
    console.print(comparison_table(rows))


def _find_rate(console: Console, experiments: list[Experiment], as_json: bool) -> None:
    """Print the highest rate of each experiment."""
    rows: list[tuple[str, Summary]] = []
    rates: list[dict[str, Any]] = []
    for experiment in experiments:
        found = highest_rate(experiment)
        rates.append({"label": experiment.label, "rate_req_s": None if found is None else found[0]})
        if found is not None:
            rows.append((f"{experiment.label} at {found[0]:.3g}/s", found[1]))
    if as_json:
        _print_json(rates)
        return
    _print_head(console, experiments[0])
    for row in rates:
        rate = row["rate_req_s"]
        text = "misses it at any rate" if rate is None else f"meets it up to {rate:.3g} requests/s"
        console.print(f"{row['label'] or 'the deployment'} {text}", highlight=False)
    if rows:
        console.print(comparison_table(rows))


def _print_head(console: Console, experiment: Experiment) -> None:
    deployment, traffic = experiment.deployment, experiment.traffic
    load = "its own rate" if traffic.rate_req_s is None else f"{traffic.rate_req_s:g} requests/s"
    load = load if traffic.num_users is None else f"{traffic.num_users} users"
    console.print(f"[bold]{deployment.describe()}[/bold]", highlight=False)
    profile = deployment.priced.profile
    state = "" if profile.calibrated else ", [yellow]uncalibrated[/yellow]"
    console.print(f"{traffic.name} at {load}; profile {profile.name}{state}\n", highlight=False)


@contextmanager
def _progress(experiment: Experiment, wanted: bool) -> Iterator[Callable[[int, float], None] | None]:
    """Show a bar of ended requests on a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    total = experiment.traffic.build().num_requests
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)

        def update(num_ended: int, now: float) -> None:
            if num_ended % 100 == 0:
                bar.update(task, completed=num_ended)

        yield update


def _experiments(
    choices: _Choices,
    deployment: Callable[[str], Deployment],
    plan: TrafficPlan,
    settings: dict[str, Any],
    batch_window_s: float,
    router: str,
    slo: Slo | None,
) -> list[Experiment]:
    """Return one experiment for each combination, labelled by what varies."""
    found: list[Experiment] = []
    deployments = {gpu: deployment(gpu) for gpu in choices.gpus}
    for gpu, rate, policy, kv in product(choices.gpus, choices.rates, choices.policies, choices.reservations):
        parts = [
            gpu if len(choices.gpus) > 1 else "",
            f"{rate:g}/s" if len(choices.rates) > 1 and rate is not None else "",
            policy if len(choices.policies) > 1 else "",
            kv if len(choices.reservations) > 1 else "",
        ]
        own = {
            "policy": policy,
            "kv_reservation": kv,
            "batch_window_s": batch_window_s if policy == "dynamic" else 0.0,
            "enable_prefix_caching": False if kv == "contiguous" else settings["enable_prefix_caching"],
        }
        label = " · ".join(filter(None, parts))
        traffic = replace(plan, rate_req_s=rate)
        found.append(Experiment(label, deployments[gpu], traffic, settings | own, router, slo))
    return found


def _deployment(
    spec: ModelSpec,
    gpu: str,
    sizes: tuple[int | None, int, int, int],
    replicas: int | None,
    precision: PrecisionPlan,
    engine: str,
    memory_fraction: float | None,
    disaggregate: str | None,
    link_gb_s: float | None,
) -> Deployment:
    """Return the deployment that the options describe.

    Raises: ValueError when the devices are no whole number of replicas or the layout is impossible.
    """
    hardware, count, profile = find_deployment_hardware(gpu)
    tp, pp, dp, ep = sizes
    split = None if disaggregate is None else _disaggregation(disaggregate, link_gb_s)
    wanted = split.num_prefill_replicas + split.num_decode_replicas if split else replicas
    layout = Layout(tp or max(1, count // ((wanted or 1) * pp * dp)), pp, dp, ep)
    check_layout(spec, layout)
    copies = wanted or max(1, count // layout.num_ranks)
    if copies * layout.num_ranks != count:
        raise ValueError(
            f"{copies} replicas of {layout.num_ranks} devices are {copies * layout.num_ranks}, but {gpu} names {count} "
            "(change the count, --tp or --replicas)"
        )
    return Deployment(
        spec, hardware, layout, precision, engine, 1 if split else copies, memory_fraction, disaggregation=split,
        profile=profile,
    )  # fmt: skip


def _disaggregation(text: str, link_gb_s: float | None) -> Disaggregation:
    prefill, _, decode = text.partition(":")
    if not (prefill.isdigit() and decode.isdigit()):
        raise ValueError(f"--disaggregate is {text!r}; write prefill and decode replicas as 1:3")
    return Disaggregation(int(prefill), int(decode), None if link_gb_s is None else link_gb_s * 1e9)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _rates(text: str | None) -> list[float | None]:
    """Read `8`, `2,4,8` or a range `1:20`, which becomes a few rates between."""
    if text is None:
        return [None]
    try:
        if ":" in text:
            low, high = (float(part) for part in text.split(":"))
            step = (high - low) / (SWEEP_POINTS - 1)
            return [low + i * step for i in range(SWEEP_POINTS)]
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--rate is {text!r}; write 8, 2,4,8 or 1:20") from error


def _print_json(value: Any) -> None:
    def plain(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return None
        if isinstance(item, dict):
            return {key: plain(v) for key, v in item.items()}
        return [plain(v) for v in item] if isinstance(item, list | tuple) else item

    print(json.dumps(plain(value)))
