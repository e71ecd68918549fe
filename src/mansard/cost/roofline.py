"""The roofline: how long a program's step takes on a hardware, op by op, and what bounds each op.

An op takes its floor and then the longer of two times: its FLOPs at the rate its kernels reach, its bytes at
the bandwidth they reach: `t = floor + max(flops / (e_f · F), bytes / (e_b · BW))`. A step adds the host's
overhead: `h0 + h1 · sequences`. Build a `PricedProgram` once and ask it for any number of steps; every number
of a `StepShape` may be an array.

Source: Williams, Waterman, Patterson, "Roofline" (CACM 52(4), 2009); efficiencies and floors in
`profiles/*.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from mansard.cost.collectives import collective_time
from mansard.cost.formats import Formats, PartFormat, PrecisionPlan, Width, resolve_formats
from mansard.cost.op_cost import (
    Layout,
    Work,
    kv_bytes_per_token,
    resident_weight_bytes,
    send_work,
    work_of,
)
from mansard.cost.profiles import Profile
from mansard.cost.shape import Number, StepShape, largest, smallest
from mansard.program.ops import AllGather, AllReduce, Linear, MoE, Op, Program
from mansard.specs.hardware import HardwareSpec

Bound = Literal["compute", "memory", "floor", "network"]


@dataclass(frozen=True, slots=True)
class OpCost:
    """The price of all equal ops of a step together. Units: FLOPs, bytes and seconds of one rank.

    `floor_s`, `compute_s`, `memory_s` and `network_s` are the times it would take if that alone counted.
    """

    work: Work
    time_s: Number
    floor_s: Number
    compute_s: Number
    memory_s: Number
    network_s: Number

    @property
    def name(self) -> str:
        """Return the op's name."""
        return self.work.name

    @property
    def flops(self) -> Number:
        """Return the FLOPs of all equal ops."""
        return self.work.count * self.work.flops

    @property
    def bytes(self) -> Number:
        """Return the memory traffic of all equal ops: weights, activations and KV."""
        work = self.work
        return work.count * (work.weight_bytes + work.activation_bytes + work.kv_bytes)

    @property
    def bound(self) -> Bound:
        """Say what takes the longest (of the first element, when arrays were priced)."""
        times: list[tuple[float, Bound]] = [
            (_first(self.network_s), "network"),
            (_first(self.compute_s), "compute"),
            (_first(self.memory_s), "memory"),
            (_first(self.floor_s), "floor"),
        ]
        return max(times, key=lambda t: t[0])[1]


@dataclass(frozen=True, slots=True)
class StepCost:
    """The price of one step on one rank: its ops and the host's overhead. Units: seconds, FLOPs, bytes."""

    ops: tuple[OpCost, ...]
    overhead_s: Number
    calibrated: bool = True

    @property
    def ops_s(self) -> Number:
        """Return the time of all ops."""
        return sum((op.time_s for op in self.ops), start=0.0)

    @property
    def time_s(self) -> Number:
        """Return how long the step takes: its ops and the overhead."""
        return self.ops_s + self.overhead_s

    @property
    def flops(self) -> Number:
        """Return the FLOPs of the step."""
        return sum((op.flops for op in self.ops), start=0.0)

    @property
    def bytes(self) -> Number:
        """Return the memory traffic of the step."""
        return sum((op.bytes for op in self.ops), start=0.0)

    @property
    def weight_bytes(self) -> Number:
        """Return the bytes of weights read."""
        return sum((op.work.count * op.work.weight_bytes for op in self.ops), start=0.0)

    @property
    def kv_bytes(self) -> Number:
        """Return the bytes of KV cache (and recurrent state) read and written."""
        return sum((op.work.count * op.work.kv_bytes for op in self.ops), start=0.0)

    @property
    def network_bytes(self) -> Number:
        """Return the bytes of messages."""
        return sum((op.work.count * op.work.network_bytes for op in self.ops), start=0.0)

    @property
    def bound(self) -> str:
        """Say what the step spends most of its time on: memory, compute, network, floor or overhead."""
        totals: dict[str, float] = {"overhead": _first(self.overhead_s)}
        for op in self.ops:
            totals[op.bound] = totals.get(op.bound, 0.0) + _first(op.time_s)
        return max(totals, key=lambda key: totals[key])


class PricedProgram:
    """A program prepared for pricing on one hardware: equal ops counted once, constants resolved."""

    def __init__(
        self,
        program: Program,
        hardware: HardwareSpec,
        profile: Profile,
        precision: PrecisionPlan,
        layout: Layout | None = None,
    ) -> None:
        """Group the program's ops and resolve `precision` on `hardware`.

        Raises: ValueError when the layout's tensor parallelism is not the program's, or a format cannot run.
        """
        self.layout = layout or Layout(tensor_parallel=program.tensor_parallel)
        if self.layout.tensor_parallel != program.tensor_parallel:
            raise ValueError(
                f"the program is built for tensor parallel {program.tensor_parallel}, the layout says "
                f"{self.layout.tensor_parallel}; build it with decoder(spec, tensor_parallel=…)"
            )
        self.hardware, self.profile, self.precision = hardware, profile, precision
        self.formats: Formats = resolve_formats(precision, hardware)
        self.groups: tuple[tuple[Op, int], ...] = tuple(_group(program.ops))
        self.num_layers = max(program.layers, default=-1) + 1
        self.num_expert_layers = sum(isinstance(op, MoE) for op in program.ops)
        self.hidden_size = max((op.in_features for op in program.ops if isinstance(op, Linear)), default=0)

    def step(self, shape: StepShape) -> StepCost:
        """Return the price of one step."""
        works = [w for op, n in self.groups for w in work_of(op, n, shape, self.formats, self.layout)]
        works += send_work(self.layout, self.hidden_size, shape, self.formats)
        engine = self.profile.engine
        overhead = engine.step_overhead_s + engine.sequence_overhead_s * shape.num_sequences
        overhead = overhead + self.prompt_overhead_s * smallest(shape.num_prefills, 1.0)
        return StepCost(tuple(self._cost(w) for w in works), overhead, self.profile.calibrated)

    @property
    def prompt_overhead_s(self) -> float:
        """Return what a step takes longer for having a prompt in it: its launches, outside the CUDA graph."""
        engine = self.profile.engine
        return engine.prompt_layer_s * self.num_layers + engine.prompt_moe_layer_s * self.num_expert_layers

    def time(self, shape: StepShape) -> Number:
        """Return how long one step takes. Units: seconds."""
        return self.step(shape).time_s

    @property
    def resident_weight_bytes(self) -> float:
        """Return the bytes of weights on one rank. Units: bytes."""
        stages = self.layout.pipeline_parallel
        whole = sum(n * resident_weight_bytes(op, self.formats, self.layout) for op, n in self.groups)
        return whole / stages

    def kv_capacity_tokens(self, memory_fraction: float = 0.9, reserved_bytes: float = 4e9) -> float:
        """Return how many tokens of context one data-parallel rank's cache holds beside the weights.

        `reserved_bytes` are activations, graphs and the runtime; sliding windows are counted as full layers, so this
        is a lower bound. The memory ledger is exact; this serves when only speed is asked for. Units: tokens.
        """
        stages = self.layout.pipeline_parallel
        per_token = sum(n * kv_bytes_per_token(op, self.formats) for op, n in self.groups) / stages
        free = memory_fraction * self.hardware.visible_memory_bytes - self.resident_weight_bytes - reserved_bytes
        return max(free, 0.0) / per_token if per_token else float("inf")

    def _cost(self, work: Work) -> OpCost:
        if work.kind == "network":
            kind = self.hardware.link_between(work.num_ranks).kind
            network = (
                work.count
                * self.profile.engine.network_scale
                * collective_time(
                    work.collective,
                    work.network_bytes,
                    work.num_ranks,
                    self.hardware,
                    self.profile.link(kind),
                    work.launches,
                )
            )
            return OpCost(work, network, 0.0, 0.0, 0.0, network)
        part = self.formats.parts[work.part]
        floor_s, compute, memory = _efficiencies(work, part, self.profile, self.formats.kv_width)
        floor = work.count * work.launches * floor_s
        flops_s = work.count * work.flops / (compute * self.hardware.peak_flops(part.rate))
        moved = work.weight_bytes + work.activation_bytes + work.kv_bytes
        memory_s = work.count * moved / (memory * self.hardware.memory_bytes_per_s)
        return OpCost(work, floor + largest(flops_s, memory_s), floor, flops_s, memory_s, 0.0)


def price(
    program: Program,
    shape: StepShape,
    hardware: HardwareSpec,
    profile: Profile,
    precision: PrecisionPlan,
    layout: Layout | None = None,
) -> StepCost:
    """Return what one step of `program` costs on `hardware`, op by op.

    Raises: ValueError when the layout does not fit the program or the hardware cannot use a format.
    """
    return PricedProgram(program, hardware, profile, precision, layout).step(shape)


def _efficiencies(work: Work, part: PartFormat, profile: Profile, kv: Width) -> tuple[float, Number, float]:
    """Return (floor seconds, share of peak FLOP/s, share of bandwidth) of a kernel."""
    family, engine = profile.family, profile.engine
    compute: Number
    match work.kind:
        case "gemm":
            floor, memory = family.gemm_floor_s, family.gemm_memory[part.width]
            compute = family.gemm_compute[part.rate]
        case "moe":
            floor, compute = family.moe_floor_s, family.moe_compute * family.gemm_compute[part.rate]
            memory, compute = family.moe_memory[part.width] * engine.moe_scale, compute * engine.moe_scale
        case "decode_attention":
            floor, compute = family.decode_attention_floor_s, 0.5
            memory = family.decode_attention_memory[kv] / engine.kv_traffic
        case "prefill_attention":
            floor, memory = family.decode_attention_floor_s, family.decode_attention_memory[kv]
            n = largest(work.tokens, 1.0)
            compute = family.prefill_attention_peak * n / (n + family.prefill_attention_half_tokens)
        case "linear_attention":
            floor, compute, memory = family.linear_attention_floor_s, 0.1, family.elementwise_memory
        case _:
            floor, compute, memory = family.elementwise_floor_s, 1.0, family.elementwise_memory
    reached = smallest(compute * engine.compute_scale, 1.0)  # no kernel beats the roof, whatever the scales say
    return floor * engine.floor_scale, reached, min(memory * engine.memory_scale, 1.0)


def _group(ops: Iterable[Op]) -> list[tuple[Op, int]]:
    """Count equal ops once; ops are equal when their sizes are, whatever registers and layers they name."""
    found: dict[object, tuple[Op, int]] = {}
    for op in ops:
        key = _signature(op)
        first, count = found.get(key, (op, 0))
        found[key] = (first, count + 1)
    return list(found.values())


def _signature(op: Op) -> tuple[object, ...]:
    values = [getattr(op, f.name) for f in fields(op) if f.name not in ("cache_layer", "rope")]
    sizes = tuple(v for v in values if v is None or isinstance(v, int | float) or _sizes(v))
    names = tuple(".".join(w.split(".")[-3:]) for w in op.weights) if isinstance(op, Linear) else ()
    of_logits = isinstance(op, AllReduce | AllGather) and op.register == "logits"
    return (type(op).__name__, names, of_logits, *sizes)


def _sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, int) for v in value)


def _first(value: Number) -> float:
    return float(np.ravel(value)[0]) if isinstance(value, np.ndarray) else float(value)
