"""Deployment: one way to run the model, and Option: what it costs, or the first limit that rules it out.

An option is one replica seen over a whole grid of concurrencies: the ledger says whether it starts and how many
requests its cache holds, the cost model how fast each load runs, the service level which loads are admissible.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mansard.cost.calibrate import host_profile, load_calibration
from mansard.cost.curves import Curve
from mansard.cost.engine_memory import default_batched_tokens, default_num_seqs, find_engine
from mansard.cost.formats import PrecisionPlan, resolve_formats
from mansard.cost.kv_pool import kv_packing
from mansard.cost.memory import Ledger, Serving, kv_settings, ledger, resolve_serving
from mansard.cost.op_cost import Layout
from mansard.cost.profiles import Profile, profile_for
from mansard.cost.question import Question
from mansard.cost.roofline import PricedProgram
from mansard.cost.serving import ServingEstimate, estimate
from mansard.cost.shape import Number
from mansard.cost.steady_state import Load
from mansard.cost.stored_formats import on_hardware
from mansard.cost.tails import tpot_at, ttft_at
from mansard.program.decoder import decoder
from mansard.specs.hardware import HardwareSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOST = "host"  # the vendor of this machine, whose ceilings were measured
POISSON_CV = 1.2  # of arrivals; above, they come in bursts
GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica's hardware, split, formats and engine, and how many replicas there are."""

    hardware: HardwareSpec
    layout: Layout
    weights: str
    kv: str
    engine: str
    max_model_len: int
    num_batched_tokens: int
    num_seqs: int
    fraction: float
    precision: PrecisionPlan = field(repr=False)
    num_replicas: int = 1

    @property
    def num_devices(self) -> int:
        """Return all devices."""
        return self.layout.num_ranks * self.num_replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Return what all devices cost an hour; None without a price."""
        price = self.hardware.price
        return None if price is None else price.usd_per_hour * self.num_devices

    def serving(self) -> Serving:
        """Return how the engine is started, for the memory ledger."""
        return Serving(
            engine=find_engine(self.engine),
            fraction=self.fraction,
            max_model_len=self.max_model_len,
            num_batched_tokens=self.num_batched_tokens,
            num_seqs=self.num_seqs,
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment of one replica with what is known of it.

    `grid` are concurrencies of one replica and `curve` the estimate over them; `ttft_s` and `tpot_s` are those at the
    service level's percentile. `limit` is the first reason against it.
    """

    deployment: Deployment
    limit: str | None = None
    ledger: Ledger | None = None
    max_running: int = 0
    grid: NDArray[np.float64] | None = None
    capacity_tokens: float = 0.0
    curve: Curve | None = None
    ttft_s: NDArray[np.float64] | None = None
    tpot_s: NDArray[np.float64] | None = None


def make_deployment(
    question: Question, hardware: HardwareSpec, layout: Layout, weights: str, kv: str, engine: str
) -> Deployment:
    """Return the deployment with the engine's defaults for this hardware filled in."""
    profile, memory = base_profile(hardware, engine), find_engine(engine)
    batched = min(default_batched_tokens(hardware), profile.engine.max_num_batched_tokens)
    return Deployment(
        hardware=hardware,
        layout=layout,
        weights=weights,
        kv=kv,
        engine=engine,
        max_model_len=question.context,
        num_batched_tokens=question.num_batched_tokens or batched,
        num_seqs=min(default_num_seqs(hardware), profile.engine.max_num_seqs),
        fraction=question.memory_fraction or memory.default_fraction,
        precision=on_hardware(PrecisionPlan.published(question.spec, weights, kv), hardware),
    )


class Pricer:
    """Prices deployments of one model; a program is laid out once for each tensor-parallel size."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._programs: dict[int, PricedProgram] = {}

    def priced(self, deployment: Deployment) -> PricedProgram:
        """Return the program prepared for `deployment`: a copy of the layout's with other hardware and formats.

        Raises: ValueError when a format cannot run on the hardware.
        """
        size, profile = deployment.layout.tensor_parallel, _profile(deployment)
        hardware, precision = deployment.hardware, deployment.precision
        base = self._programs.get(size)
        if base is None:
            program = decoder(self.question.spec, tensor_parallel=size)
            base = PricedProgram(program, hardware, profile, precision, deployment.layout)
            self._programs[size] = base
        made = copy.copy(base)
        made.layout, made.hardware, made.profile, made.precision = deployment.layout, hardware, profile, precision
        made.formats = resolve_formats(precision, hardware)
        return made

    def estimate(self, deployment: Deployment, concurrency: Number, capacity_tokens: float) -> ServingEstimate:
        """Return the estimate of one replica at `concurrency` requests in flight."""
        load = base_load(self.question, deployment.engine)
        return estimate(
            self.question.spec,
            deployment.hardware,
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            concurrency=concurrency,
            cached_tokens=load.cached_tokens,
            burst_share=load.burst_share,
            speculation=load.speculation,
            capacity_tokens=capacity_tokens,
            priced=self.priced(deployment),
            layout=deployment.layout,
            precision=deployment.precision,
            engine=deployment.engine,
        )

    def ledger(self, deployment: Deployment) -> Ledger:
        """Return the memory ledger of one device.

        Raises: ValueError when the layout is impossible.
        """
        return ledger(
            self.question.spec,
            deployment.hardware,
            deployment.precision,
            deployment.layout,
            deployment.serving(),
            self.question.other_parameters,
        )


def cached_tokens(question: Question, engine: str) -> float:
    """Return the tokens of a mean prompt that a prefix cache holds; llama.cpp keeps no cache across requests' slots."""
    return 0.0 if engine == "llama.cpp" else question.workload.cached_share * question.input_tokens


def base_load(question: Question, engine: str) -> Load:
    """Return what the requests of a question look like to one replica, but for their number.

    Arrivals at a rate that are about as irregular as Poisson's do not come in bursts; a closed loop's do.
    """
    workload = question.workload
    spread = workload.rate_req_s is not None and workload.interarrival_cv <= POISSON_CV
    return Load(
        input_tokens=question.input_tokens,
        output_tokens=question.output_tokens,
        concurrency=1.0,
        cached_tokens=cached_tokens(question, engine),
        burst_share=0.0 if spread else None,
        speculation=question.speculation,
    )


def base_profile(hardware: HardwareSpec, engine: str) -> Profile:
    """Return the constants of an engine on a hardware; of this machine, those that were measured.

    Raises: ValueError for an unknown engine.
    """
    measured = load_calibration() if hardware.vendor == HOST else None
    return profile_for(hardware, engine) if measured is None else host_profile(measured)


def _profile(deployment: Deployment) -> Profile:
    found = base_profile(deployment.hardware, deployment.engine)
    engine = replace(
        found.engine, max_num_batched_tokens=deployment.num_batched_tokens, max_num_seqs=deployment.num_seqs
    )
    return replace(found, engine=engine)


def requests_held(question: Question, deployment: Deployment, result: Ledger) -> float:
    """Return how many mean requests one data-parallel rank's cache holds at once."""
    start = resolve_serving(deployment.serving(), question.spec, deployment.hardware)
    packing = kv_packing(question.spec, kv_settings(deployment.precision, deployment.layout, start))
    mean = round(question.input_tokens + question.output_tokens)
    # A hybrid's sliding layers also hold the tokens of the step that runs: at most the request's own prompt.
    need = packing.blocks_for(mean, min(start.num_batched_tokens, round(question.input_tokens)))
    return result.pool.num_blocks / need


def percentiles(question: Question, deployment: Deployment, found: ServingEstimate | Curve) -> tuple[Number, Number]:
    """Return (TTFT, TPOT) that the service level's percentile of requests keeps. Units: seconds."""
    at, lengths = question.limits.percentile, question.workload.input_tokens
    ttft = found.ttft_s if isinstance(found, Curve) else found.ttft_s.best
    tpot = found.tpot_s if isinstance(found, Curve) else found.tpot_s.best
    ratio = min(lengths.quantile(at / 100.0), float(question.context)) / question.input_tokens
    chunks = max(1.0, question.input_tokens / deployment.num_batched_tokens)
    others = found.running / float(deployment.layout.data_parallel) * chunks
    return ttft_at(at, ttft, found.queue_s, ratio), tpot_at(at, tpot, found.itl_s, others)


def grid_up_to(most: float) -> NDArray[np.float64]:
    """Return the concurrencies to price: round numbers up to `most`, and `most` itself."""
    kept = [float(c) for c in GRID if c < most]
    return np.array([*kept, float(max(1, int(most)))])
