"""Per-op detail: what each kind of op took in a decode step, beside its price and the roof.

Measured are the compiled program's own timers, op by op; priced is the cost model's time of the same ops on this
machine. Equal ops of all layers are one row. Bytes of weights are the average of what lies packed, so a file of mixed
formats shows each op at the mean width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from mansard.bench.engine_run import StepTiming
from mansard.bench.headroom import LEVERS
from mansard.bench.roof import Roof
from mansard.bench.step_demand import StepDemand
from mansard.cost.calibrate import HostCalibration, host_hardware, host_profile
from mansard.cost.formats import PrecisionPlan, Width
from mansard.cost.op_cost import Layout, work_of
from mansard.cost.roofline import OpCost, PricedProgram
from mansard.cost.shape import StepShape
from mansard.program.decoder import decoder
from mansard.program.ops import Attention, Program
from mansard.runtime.machine import total_memory_bytes
from mansard.specs.sizes import num_parameters

NEAR_THE_FLOOR = 0.7  # share of the ops' time above which faster kernels are not the next lever


@dataclass(frozen=True, slots=True)
class OpRow:
    """All ops of one kind in a decode step. Units: seconds, bytes, FLOPs.

    priced_s: with the efficiencies of this machine's kernels; floor_s: the roof alone, bytes or FLOPs.
    """

    kind: str
    count: int
    measured_s: float
    priced_s: float
    bytes: float
    flops: float
    floor_s: float
    bound: str  # of the floor: memory bandwidth or compute

    @property
    def reached(self) -> float:
        """Return achieved ÷ roof: the share of the measured time that the roof would take."""
        return self.floor_s / self.measured_s if self.measured_s else 0.0


@dataclass(frozen=True, slots=True)
class OpDetail:
    """The rows of one decode step of `batch_size` sequences, the longest first."""

    batch_size: int
    rows: tuple[OpRow, ...]

    @property
    def measured_s(self) -> float:
        """Return the time of all ops."""
        return sum(row.measured_s for row in self.rows)

    def share(self, row: OpRow) -> float:
        """Return a row's share of the ops' time."""
        return row.measured_s / self.measured_s if self.measured_s else 0.0

    def sentence(self) -> str:
        """Return one sentence: what bounds the ops, which is furthest from its floor, and the next lever."""
        floor_s = sum(row.floor_s for row in self.rows)
        bounds: Counter[str] = Counter()
        for row in self.rows:
            bounds[row.bound] += row.measured_s  # type: ignore[assignment]
        bound = bounds.most_common(1)[0][0]
        worst = max(self.rows, key=lambda row: row.measured_s - row.floor_s)
        gap = worst.measured_s - worst.floor_s
        near = floor_s >= NEAR_THE_FLOOR * self.measured_s
        lever = LEVERS[bound] if near else f"a faster {worst.kind} kernel"
        return (
            f"The ops take {self.measured_s * 1e3:.2f} ms, mostly bound by {bound}, and reach "
            f"{floor_s / self.measured_s:.0%} of the roof; {worst.kind} is furthest above its floor "
            f"({gap * 1e3:.2f} ms). Next lever: {lever}."
        )


def op_detail(
    steps: Sequence[StepTiming], demand: StepDemand, roof: Roof, number_format: str, max_model_len: int
) -> OpDetail | None:
    """Return the ops of equal decode steps; None when none was profiled.

    number_format: what the kernels multiply in, as roofs call it.
    """
    profiled = [s for s in steps if s.op_seconds]
    if not profiled:
        return None
    program = decoder(demand.spec, max_model_len=max_model_len)
    batch = profiled[0].num_decodes
    context = fmean(s.num_context_tokens for s in profiled) / batch
    shape = StepShape(num_decodes=float(batch), decode_context=context)
    used, peak = roof.peak(number_format)
    priced = priced_on(program, demand, roof, used)
    kinds = [_kind(priced, op, shape) for op in program.ops]
    times: dict[str, list[float]] = {kind: [0.0] * len(profiled) for kind in kinds}
    for i, step in enumerate(profiled):
        for kind, seconds in zip(kinds, step.op_seconds, strict=True):
            times[kind][i] += seconds
    costs = _costs_by_kind(priced, program, shape)
    rows = []
    for kind, count in Counter(kinds).items():
        ops = costs[kind]
        num_bytes, flops = (sum(float(getattr(c, name)) for c in ops) for name in ("bytes", "flops"))
        by_memory, by_compute = num_bytes / roof.read_bytes_per_s, flops / peak
        bound = "memory bandwidth" if by_memory >= by_compute else "compute"
        priced_s = sum(float(c.time_s) for c in ops)
        rows.append(
            OpRow(kind, count, median(times[kind]), priced_s, num_bytes, flops, max(by_memory, by_compute), bound)
        )
    return OpDetail(batch, tuple(sorted(rows, key=lambda row: -row.measured_s)))


def predicted_step_s(
    demand: StepDemand, roof: Roof, number_format: str, batch_size: int, context: float, max_model_len: int
) -> float:
    """Return how long the cost model says a decode step takes on the machine under `roof`; `context` of a sequence."""
    program = decoder(demand.spec, max_model_len=max_model_len)
    priced = priced_on(program, demand, roof, roof.peak(number_format)[0])
    return float(priced.time(StepShape(num_decodes=float(batch_size), decode_context=context)))


def priced_on(program: Program, demand: StepDemand, roof: Roof, rate: str) -> PricedProgram:
    """Return a program priced on the machine under `roof`, with the bytes that its weights and cache really take."""
    flops = {**dict.fromkeys(("fp32", "fp16", "bf16"), roof.peak("fp32")[1]), **roof.flops}
    host = roof.calibration or HostCalibration("probed", 1, {1: roof.read_bytes_per_s}, flops, total_memory_bytes())
    host = replace(host, num_threads=1, read_bytes_per_s={1: roof.read_bytes_per_s}, flops={**flops, **host.flops})
    priced = PricedProgram(program, host_hardware(host), host_profile(host), PrecisionPlan.uniform("bf16"))
    each = demand.packed_weight_bytes / num_parameters(demand.spec)
    width: Width = "16" if each > 1.5 else "8" if each > 0.75 else "4"
    parts = {
        name: replace(part, bytes_per_weight=each, rate=rate, width=width)
        for name, part in priced.formats.parts.items()
    }
    values = sum(2 * op.num_kv_heads * op.head_dim for op in program.ops if isinstance(op, Attention))
    kv = demand.kv_bytes_per_token / values if values else priced.formats.kv_bytes
    priced.formats = replace(priced.formats, parts=parts, kv_bytes=kv, activation_bytes=4.0)
    return priced


def _kind(priced: PricedProgram, op: object, shape: StepShape) -> str:
    works = work_of(op, 1, shape, priced.formats, Layout())  # type: ignore[arg-type]
    return " + ".join(work.name for work in works)


def _costs_by_kind(priced: PricedProgram, program: Program, shape: StepShape) -> dict[str, list[OpCost]]:
    """Return the prices of a step by the same names as `_kind`'s; an op of several kernels has several prices."""
    costs = iter(priced.step(shape).ops)
    found: dict[str, list[OpCost]] = {}
    for op, _ in priced.groups:
        works = work_of(op, 1, shape, priced.formats, Layout())
        found.setdefault(_kind(priced, op, shape), []).extend(next(costs) for _ in works)
    return found
