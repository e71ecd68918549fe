"""bench_offline: the engine in this process over a grid of batch sizes and lengths, each with MBU and MFU.

A grid point is one batch, all requests at once, repeated; repetitions interleave over the grid, so that a machine that
slows down for a while slows every point. Medians over repetitions, their range beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from mansard.bench.compared import Compared
from mansard.bench.energy import Energy, EnergyMeter, host_counters
from mansard.bench.engine_run import EngineRun, run_batch
from mansard.bench.headroom import Headroom, headroom
from mansard.bench.metrics import check, tpot_s, ttft_s
from mansard.bench.op_detail import OpDetail, op_detail, predicted_step_s
from mansard.bench.roof import Roof
from mansard.bench.step_demand import StepDemand
from mansard.runtime.model import EngineOptions, LoadedModel


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One batch: how many requests of which lengths."""

    batch_size: int
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class OfflinePoint:
    """What a grid point came to: medians over repetitions. Units: seconds, tokens per second.

    `prefill_tokens_per_s` is over the steps that computed prompts, `decode_tokens_per_s` over those that only decoded,
    `output_tokens_per_s` output over the whole time. `spread` is (max - min) / median of the latter.
    """

    point: GridPoint
    ttft_s: float
    tpot_s: float | None
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    output_tokens_per_s: float
    prefill_mfu: float
    headroom: Headroom | None
    spread: float
    num_runs: int
    op_detail: OpDetail | None = None
    energy: Energy | None = None  # of all its runs
    step: Compared | None = None  # a decode step as the cost model prices it, and as measured

    @property
    def mbu(self) -> float | None:
        """Return the share of the roof's bandwidth that decoding used."""
        return None if self.headroom is None else self.headroom.mbu

    @property
    def num_output_tokens(self) -> int:
        """Return the output tokens of all runs."""
        return self.num_runs * self.point.batch_size * self.point.num_output

    @property
    def mfu(self) -> float | None:
        """Return the share of the roof's arithmetic that decoding used."""
        return None if self.headroom is None else self.headroom.mfu


def demand_of(model: LoadedModel) -> StepDemand:
    """Return what a loaded model's steps read."""
    executor: Any = model.executor
    per_token = executor.kv_bytes / (model.num_blocks * model.block_size)
    return StepDemand(model.spec, executor.weight_bytes, per_token)


def multiplied_in(options: EngineOptions) -> str:
    """Return the number format that the kernels multiply in, as roofs call it."""
    return {"float32": "fp32"}.get(options.activations, options.activations)


def grid(batch_sizes: Iterable[int], prompts: Iterable[int], outputs: Iterable[int]) -> list[GridPoint]:
    """Return every combination.

    Raises: ValueError for a number below 1.
    """
    points = [GridPoint(b, p, o) for p in prompts for o in outputs for b in batch_sizes]
    for point in points:
        if min(point.batch_size, point.num_prompt, point.num_output) < 1:
            raise ValueError(f"{point}: batch size and lengths must be at least 1")
    return points


def bench_offline(
    model: LoadedModel,
    options: EngineOptions,
    points: Sequence[GridPoint],
    roof: Roof,
    nonce: int,
    num_runs: int = 3,
    on_run: Callable[[GridPoint], None] = lambda point: None,
    *,
    detail: bool = False,
    on_engine_run: Callable[[EngineRun], None] = lambda run: None,
) -> list[OfflinePoint]:
    """Run every point `num_runs` times after one warm-up of the first, and return what each came to.

    detail: once more with every op timed, apart from the runs that count. on_engine_run: sees each of those runs.
    Raises: ValueError when a batch does not fit the engine's limits.
    """
    first = points[0]
    most = max(p.batch_size for p in points)
    if most > options.max_num_seqs:
        raise ValueError(f"batch size {most}; the engine runs {options.max_num_seqs} (raise --max-num-seqs)")
    run_batch(model, options, 1, min(first.num_prompt, 32), 4, nonce)
    runs: dict[GridPoint, list[EngineRun]] = {p: [] for p in points}
    meters = {p: EnergyMeter(host_counters()) for p in points}
    for repetition in range(num_runs):
        for point in points:
            seed = nonce + repetition + 1
            with meters[point]:
                found = run_batch(model, options, point.batch_size, point.num_prompt, point.num_output, seed)
            runs[point].append(found)
            on_engine_run(found)
            on_run(point)
    points_found = [
        replace(
            _point(p, found, demand_of(model), roof, multiplied_in(options)),
            energy=meters[p].energy,
            step=_step(model, options, found[0], roof),
        )
        for p, found in runs.items()
    ]
    if not detail:
        return points_found
    return [replace(p, op_detail=_detail(model, options, p.point, roof, nonce)) for p in points_found]


def _step(model: LoadedModel, options: EngineOptions, run: EngineRun, roof: Roof) -> Compared | None:
    """Return a run's median decode step beside its price; None without one."""
    steps = run.decode_steps
    if not steps:
        return None
    batch = steps[0].num_decodes
    context = fmean(s.num_context_tokens for s in steps) / batch
    predicted = predicted_step_s(demand_of(model), roof, multiplied_in(options), batch, context, model.max_model_len)
    return Compared("decode_step_s", predicted, median(s.time_s for s in steps))


def _detail(model: LoadedModel, options: EngineOptions, point: GridPoint, roof: Roof, nonce: int) -> OpDetail | None:
    if not hasattr(model.executor, "profile"):
        return None
    size = (point.batch_size, point.num_prompt, point.num_output)
    run = run_batch(model, options, *size, nonce, profiles=True)
    return op_detail(run.decode_steps, demand_of(model), roof, multiplied_in(options), model.max_model_len)


def _point(
    point: GridPoint, runs: Sequence[EngineRun], demand: StepDemand, roof: Roof, multiplies: str
) -> OfflinePoint:
    for run in runs:
        for record in run.records:
            check(record)
    rates = [point.batch_size * point.num_output / run.duration_s for run in runs]
    prefill = median(_prefill_rate(run) for run in runs)
    firsts = [t for run in runs for r in run.records if (t := ttft_s(r)) is not None]
    later = [t for run in runs for r in run.records if (t := tpot_s(r)) is not None]
    taken_apart = [h for run in runs if (h := headroom(run, demand, roof, multiplies)) is not None]
    middle = sorted(taken_apart, key=lambda h: h.measured_s)[len(taken_apart) // 2] if taken_apart else None
    _, peak = roof.peak(multiplies)
    return OfflinePoint(
        point=point,
        ttft_s=median(firsts),
        tpot_s=median(later) if later else None,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=None if middle is None else middle.batch_size / middle.measured_s,
        output_tokens_per_s=median(rates),
        prefill_mfu=demand.flops(1.0, (point.num_prompt + 1) / 2.0) * prefill / peak,
        headroom=middle,
        spread=(max(rates) - min(rates)) / median(rates),
        num_runs=len(runs),
    )


def _prefill_rate(run: EngineRun) -> float:
    steps = run.prefill_steps
    return sum(s.num_prompt_tokens for s in steps) / sum(s.time_s for s in steps)


def limits_for(points: Sequence[GridPoint], options: EngineOptions) -> EngineOptions:
    """Return options with room for the largest batch: sequences, context and no reuse of prefixes between runs."""
    longest = max(p.num_prompt + p.num_output for p in points)
    most = max(p.batch_size for p in points)
    blocks = max(p.batch_size * -(-(p.num_prompt + p.num_output) // options.block_size) for p in points) + most
    return replace(
        options,
        max_model_len=longest,
        max_num_seqs=max(most, 1),
        num_blocks=blocks,
        enable_prefix_caching=False,
        max_num_batched_tokens=max(options.max_num_batched_tokens, most),
    )
