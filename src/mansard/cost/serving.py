"""Serving estimates: everything a table or a search needs to know about one deployment under one load.

`estimate` prices a model on a number of devices and answers with TTFT, TPOT, throughput, utilization, energy and what
limits, each best value with its published interval. Concurrency may be an array: one call, a whole curve.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.cost.energy import joules_per_token
from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.profiles import Interval, interval_for, profile_for
from mansard.cost.roofline import PricedProgram
from mansard.cost.shape import Number, largest
from mansard.cost.steady_state import Load, Service, Speculation, serve
from mansard.program.decoder import decoder
from mansard.specs.hardware import HardwareSpec
from mansard.specs.model import ModelSpec

OFFLINE_CONCURRENCY = 1e6  # more than any cache holds: the queue never runs dry


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted number with the ends of its published residuals (10 % of measurements lie beyond each)."""

    low: Number
    best: Number
    high: Number


@dataclass(frozen=True, slots=True)
class ServingEstimate:
    """How a deployment serves a load. Units: seconds, tokens per second, joules, shares of the peak.

    Every number is a scalar or an array over `concurrency`. `mbu` is the weights and KV a decode step must read over
    its time and the peak bandwidth; `mfu` the FLOPs of prompts and outputs together over time and peak.
    """

    model: str
    hardware: str
    profile: str
    num_devices: int
    num_replicas: int
    layout: Layout
    precision: PrecisionPlan
    input_tokens: Number
    output_tokens: Number
    concurrency: Number
    ttft_s: Band
    tpot_s: Band
    itl_s: Number
    e2e_s: Number
    output_tokens_per_s: Band
    running: Number
    queue_s: Number
    mbu: Number
    mfu: Number
    joules_per_token: Number | None
    capacity_tokens: Number
    bound: str
    calibrated: bool

    @property
    def tokens_per_s_per_user(self) -> Number:
        """Return what one user sees once tokens flow: 1 / TPOT."""
        return 1.0 / self.tpot_s.best

    @property
    def tokens_per_s_per_device(self) -> Number:
        """Return output tokens per second of one device."""
        return self.output_tokens_per_s.best / self.num_devices

    @property
    def requests_per_s(self) -> Number:
        """Return completed requests per second."""
        return self.output_tokens_per_s.best / self.output_tokens

    def usd_per_million_tokens(self, usd_per_device_hour: float) -> Number:
        """Return what a million output tokens cost at a price per device and hour."""
        return usd_per_device_hour * self.num_devices / 3600.0 / self.output_tokens_per_s.best * 1e6


def model_class(spec: ModelSpec) -> str:
    """Return the class whose published error applies: dense, moe or mla."""
    return "mla" if spec.mla is not None else "moe" if spec.moe is not None else "dense"


def priced_program(
    spec: ModelSpec, hardware: HardwareSpec, layout: Layout, precision: PrecisionPlan, engine: str = "vllm"
) -> PricedProgram:
    """Return `spec` prepared for pricing.

    Raises: ValueError when the layout does not divide the model, the format cannot run or the engine is unknown.
    """
    program = decoder(spec, tensor_parallel=layout.tensor_parallel)
    return PricedProgram(program, hardware, profile_for(hardware, engine), precision, layout)


def estimate(
    spec: ModelSpec, hardware: HardwareSpec, *, input_tokens: Number, output_tokens: Number, concurrency: Number,
    num_devices: int | None = None, layout: Layout | None = None, precision: PrecisionPlan | None = None,
    engine: str = "vllm", cached_tokens: Number = 0.0, burst_share: float | None = None,
    speculation: Speculation | None = None, capacity_tokens: Number | None = None, static: bool = False,
    priced: PricedProgram | None = None,
) -> ServingEstimate:  # fmt: skip
    """Return how `num_devices` (default: one replica) serve `concurrency` requests in flight.

    Replicas share the load evenly. `capacity_tokens` is the KV cache of one data-parallel rank (default: a rough
    count; the memory ledger's is exact). `priced` saves rebuilding the program: its layout, precision and engine then
    hold.

    Raises: ValueError when the devices are not a whole number of replicas, or as `priced_program`.
    """
    if priced is None:
        layout = layout or Layout(tensor_parallel=num_devices or 1)
        priced = priced_program(spec, hardware, layout, precision or PrecisionPlan(), engine)
    ranks = priced.layout.num_ranks
    devices = num_devices or ranks
    if devices % ranks:
        raise ValueError(
            f"{devices} devices are not a whole number of replicas of {ranks}; choose a multiple of {ranks}"
        )
    capacity = priced.kv_capacity_tokens() if capacity_tokens is None else capacity_tokens
    load = Load(
        input_tokens, output_tokens, largest(concurrency / float(devices // ranks), 1.0), cached_tokens, burst_share,
        capacity_tokens=capacity, speculation=speculation, static=static,
    )  # fmt: skip
    return _summarize(spec, priced, load, serve(priced, load), devices, concurrency)


def _summarize(
    spec: ModelSpec, priced: PricedProgram, load: Load, found: Service, devices: int, concurrency: Number
) -> ServingEstimate:
    """Return the estimate of all replicas from the service of one."""
    kind, profile, hardware = model_class(spec), priced.profile, priced.hardware
    replicas = devices // priced.layout.num_ranks
    mbu, mfu = utilization(priced, load, found)
    rate = found.output_tokens_per_s * replicas
    return ServingEstimate(
        model=spec.name or spec.model_type,
        hardware=hardware.name,
        profile=profile.name,
        num_devices=devices,
        num_replicas=replicas,
        layout=priced.layout,
        precision=priced.precision,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        concurrency=concurrency,
        ttft_s=_band(found.ttft_s, interval_for("ttft", kind, profile)),
        tpot_s=_band(found.tpot_s, interval_for("tpot", kind, profile)),
        itl_s=found.itl_s,
        e2e_s=found.ttft_s + load.output_tokens * found.tpot_s,
        output_tokens_per_s=_band(rate, interval_for("throughput", kind, profile)),
        running=found.running * replicas * priced.layout.data_parallel,
        queue_s=found.queue_s,
        mbu=mbu,
        mfu=mfu,
        joules_per_token=joules_per_token(hardware, devices, mbu, mfu, rate),
        capacity_tokens=load.capacity_tokens if load.capacity_tokens is not None else float("inf"),
        bound=found.bound,
        calibrated=profile.calibrated,
    )


def offline_throughput(
    spec: ModelSpec,
    hardware: HardwareSpec,
    *,
    input_tokens: Number,
    output_tokens: Number,
    layout: Layout,
    precision: PrecisionPlan,
    engine: str = "vllm",
    capacity_tokens: Number | None = None,
) -> ServingEstimate:
    """Return the estimate with every request queued at once: the cache decides how many run.

    Raises: ValueError as `priced_program`.
    """
    return estimate(
        spec, hardware, input_tokens=input_tokens, output_tokens=output_tokens, concurrency=OFFLINE_CONCURRENCY,
        layout=layout, precision=precision, engine=engine, burst_share=0.0, capacity_tokens=capacity_tokens,
    )  # fmt: skip


def utilization(priced: PricedProgram, load: Load, found: Service) -> tuple[Number, Number]:
    """Return (MBU, MFU) of one device in the steady state.

    Units: shares of peak bandwidth and of the peak FLOP/s of the layers' weight format. Source: MBU as defined by
    Databricks, "LLM Inference Performance Engineering" (2023); MFU, PaLM (arXiv 2204.02311), appendix B.
    """
    hardware, layout = priced.hardware, priced.layout
    stages = float(layout.pipeline_parallel)
    mbu = found.step_bytes / (found.itl_s * hardware.memory_bytes_per_s)  # each stage reads its share for each pass
    peak = hardware.peak_flops(priced.formats.parts["mlp"].rate)
    per_request = found.prompt_flops + found.step_flops * stages / largest(found.decoding, 1.0) * load.output_tokens
    requests = found.output_tokens_per_s / load.output_tokens / float(layout.data_parallel)
    return mbu, per_request * requests / stages / peak


def _band(best: Number, interval: Interval) -> Band:
    low, high = interval.around(best)
    return Band(low, best, high)
