"""Phases: prefill and decode of a deployment held against the roofline, and their ops one by one.

Arithmetic intensity is FLOPs over bytes moved; left of the hardware's ridge point memory bounds a phase, right of it
compute does. Floors and overheads are what neither explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from mansard.cost.deployment import Deployment, Pricer
from mansard.cost.roofline import PricedProgram, StepCost
from mansard.cost.shape import StepShape


@dataclass(frozen=True, slots=True)
class OpShare:
    """All equal ops of a step. Units: FLOPs, bytes and seconds of one rank; `share` of the step's time."""

    name: str
    count: int
    flops: float
    bytes: float
    network_bytes: float
    time_s: float
    share: float
    bound: str

    @property
    def intensity(self) -> float:
        """Return FLOPs per byte; 0 where nothing is read."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of a kind. `achieved_flops` is FLOPs over time, `ridge` the hardware's in the format of the MLPs.

    Units: FLOP/s, FLOP/byte, seconds, of one rank.
    """

    name: str
    num_tokens: float
    concurrency: float
    flops: float
    bytes: float
    time_s: float
    intensity: float
    ridge: float
    achieved_flops: float
    bound: str
    ops: tuple[OpShare, ...] = ()


def phase(name: str, priced: PricedProgram, shape: StepShape, concurrency: float, detail: bool = False) -> Phase:
    """Return one step priced as a phase, with its ops when `detail` is asked."""
    cost = priced.step(shape)
    time, flops, moved = _number(cost.time_s), _number(cost.flops), _number(cost.bytes)
    ops = op_shares(cost) if detail else ()
    tokens = _number(shape.num_tokens)
    ridge = priced.hardware.ridge(priced.formats.parts["mlp"].rate)
    return Phase(name, tokens, concurrency, flops, moved, time, flops / moved, ridge, flops / time, cost.bound, ops)


def op_shares(cost: StepCost) -> tuple[OpShare, ...]:
    """Return a step's ops, those of one name together, the longest first, the host's overhead last."""
    total = _number(cost.time_s)
    merged: dict[tuple[str, str], list[float]] = {}
    for op in cost.ops:
        sums = merged.setdefault((op.name, op.bound), [0.0] * 5)
        network = op.work.count * op.work.network_bytes
        for i, value in enumerate((op.work.count, op.flops, op.bytes, network, op.time_s)):
            sums[i] += _number(value)
    shares = [
        OpShare(name, int(v[0]), v[1], v[2], v[3], v[4], v[4] / total, bound) for (name, bound), v in merged.items()
    ]
    overhead = _number(cost.overhead_s)
    host = OpShare("host overhead", 1, 0.0, 0.0, 0.0, overhead, overhead / total, "overhead")
    return (*sorted(shares, key=lambda o: -o.time_s), host)


def phases(pricer: Pricer, deployment: Deployment, each: float, detail: bool = False) -> tuple[Phase, ...]:
    """Return prefill of the mean prompt, decode alone and decode at `each` requests of one replica."""
    priced, question = pricer.priced(deployment), pricer.question
    chunk = min(question.input_tokens, float(deployment.num_batched_tokens))
    prompt = StepShape(num_prefills=1.0, prefill_tokens=chunk, prefill_start=(question.input_tokens - chunk) / 2.0)
    found = [phase("prefill", priced, prompt, 1.0, detail), decode_phase(pricer, deployment, 1.0, detail)]
    if each > 1.0:
        found.append(decode_phase(pricer, deployment, each, detail))
    return tuple(found)


def decode_phase(pricer: Pricer, deployment: Deployment, each: float, detail: bool = False) -> Phase:
    """Return one decode step at `each` requests of one replica, halfway through their outputs."""
    question, layout = pricer.question, deployment.layout
    context = question.input_tokens + question.output_tokens / 2.0
    here = max(1.0, each / (layout.data_parallel * layout.pipeline_parallel))
    shape = StepShape(num_decodes=here, decode_context=context)
    return phase("decode", pricer.priced(deployment), shape, each, detail)


def prefill_phase(pricer: Pricer, deployment: Deployment, num_tokens: float) -> Phase:
    """Return one prefill step of `num_tokens` fresh tokens."""
    shape = StepShape(num_prefills=1.0, prefill_tokens=num_tokens)
    return phase("prefill", pricer.priced(deployment), shape, 1.0)


def _number(value: object) -> float:
    return float(cast("float", value))
