"""Candidates: every deployment worth pricing for a question, before any of them is priced.

Splits are tried in powers of two, tensor-parallel within what the links join, stages beyond; mixtures of experts also
with whole experts per rank, latent attention also with data-parallel attention. What the model's shape forbids is kept,
so that the report can say why.
"""

from __future__ import annotations

from collections.abc import Iterable

from mansard.cost.deployment import Deployment, make_deployment
from mansard.cost.engine_support import ENGINES, engine_for, find_engine_name
from mansard.cost.op_cost import Layout
from mansard.cost.question import Question
from mansard.cost.stored_formats import stored_kv, stored_weights
from mansard.specs.hardware import HardwareSpec
from mansard.specs.model import ModelSpec

SWITCHED = ("nvlink", "xgmi", "ualink", "ici", "ub")  # links fast enough that stages gain nothing inside a host
NODE = 8  # devices that one host holds where no larger switch joins them


def layouts(spec: ModelSpec, hardware: HardwareSpec, engine: str, num_ranks: int) -> tuple[Layout, ...]:
    """Return the splits of one replica over `num_ranks` devices, plainest first."""
    support = ENGINES[engine]
    if num_ranks == 1:
        return (Layout(),)
    if not support.tensor_parallel:
        return (Layout(pipeline_parallel=num_ranks),)
    found: list[Layout] = []
    joined = max(NODE, min(hardware.link.max_devices, 16)) if hardware.link.kind != "none" else 1
    if num_ranks <= joined:
        found.append(Layout(tensor_parallel=num_ranks))
    stages = max(2, num_ranks // joined)
    slow = not hardware.link.kind.startswith(SWITCHED) or "bridge" in hardware.link.kind
    if (slow or num_ranks > joined) and num_ranks % stages == 0 and hardware.link.kind != "none":
        found.append(Layout(tensor_parallel=num_ranks // stages, pipeline_parallel=stages))
    if spec.moe is not None and num_ranks <= joined:
        found.append(Layout(tensor_parallel=num_ranks, expert_parallel=num_ranks))
        if support.data_parallel and spec.mla is not None:
            found.append(Layout(data_parallel=num_ranks, expert_parallel=num_ranks))
    return tuple(found)


def replica_sizes(question: Question) -> tuple[int, ...]:
    """Return the devices of one replica to consider: powers of two, and the given number with its divisors."""
    fixed = question.num_devices
    if fixed is None:
        return tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if n <= question.max_devices)
    return tuple(n for n in range(1, fixed + 1) if fixed % n == 0 and n <= 64)


def deployments(question: Question) -> Iterable[Deployment]:
    """Yield every deployment to price: hardware × split × weight format × cache format."""
    for hardware in question.candidates:
        formats = dict.fromkeys(
            (stored_weights(w, question.spec, hardware), stored_kv(k, hardware))
            for w in question.weights
            for k in question.kv
        )
        for weights, kv in formats:
            named = question.engine != "auto"
            engine = find_engine_name(question.engine) if named else engine_for(hardware, weights)
            for layout in _layouts(question, hardware, engine):
                yield make_deployment(question, hardware, layout, weights, kv, engine)


def _layouts(question: Question, hardware: HardwareSpec, engine: str) -> Iterable[Layout]:
    if question.layout is not None:
        return (question.layout,)
    spec = question.spec
    sizes = replica_sizes(question)
    return tuple(layout for size in sizes for layout in layouts(spec, hardware, engine, size))
