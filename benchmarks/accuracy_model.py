"""Predictions for the measured rows: the cost model as a user would call it, one vectorized call per program."""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from accuracy_data import DATA, Row, by_group
from numpy.typing import NDArray

from mansard.cost.formats import PrecisionPlan
from mansard.cost.profiles import Profile, profile_for
from mansard.cost.roofline import PricedProgram
from mansard.cost.shape import StepShape
from mansard.cost.steady_state import Load, serve
from mansard.program.decoder import decoder
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import catalogue
from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec
from mansard.specs.model_presets import presets

Floats = NDArray[np.float64]


def _clients() -> dict[str, float]:
    path = next(p for p in (DATA / "clients.toml", DATA / "priors" / "clients.toml") if p.exists())
    return {name: entry["first_token_s"] for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()}


CLIENTS = _clients()  # what one source's own client adds to TTFT, by engine; a property of its runs with equal lengths


@functools.cache
def model_spec(name: str) -> ModelSpec:
    """Return a preset, or one of the models that only the measurements know."""
    if name in presets():
        return presets()[name].spec()
    extra = tomllib.loads((DATA / "models.toml").read_text(encoding="utf-8"))
    return from_hf(extra[name], name=name)


@functools.cache
def hardware(name: str) -> HardwareSpec:
    """Return a catalogue entry."""
    return catalogue()[name]


def model_class(name: str) -> str:
    """Say whether a model is dense, a mixture of experts, or one with latent attention."""
    spec = model_spec(name)
    return "mla" if spec.mla is not None else "moe" if spec.moe is not None else "dense"


@dataclass(slots=True)
class Group:
    """Rows that share a priced program, as arrays."""

    rows: list[Row]
    priced: PricedProgram
    load: Load
    capacity: float

    @property
    def floor_s(self) -> Floats:
        """Return the speed of light of a decode step: bytes over bandwidth, no efficiency, no overhead."""
        per_rank = np.asarray(self.load.concurrency) / self.priced.layout.data_parallel
        context = np.asarray(self.load.input_tokens) + np.asarray(self.load.output_tokens) / 2
        running = np.minimum(per_rank, np.maximum(self.capacity / context, 1.0))
        cost = self.priced.step(StepShape(running, context))
        moved = np.asarray(cost.weight_bytes + cost.kv_bytes)
        return moved / self.priced.hardware.memory_bytes_per_s / self.priced.layout.pipeline_parallel


def build_groups(rows: Iterable[Row], dropped: Counter[str] | None = None) -> list[Group]:
    """Prepare rows for pricing: one program per model, hardware, engine, precision and layout.

    What Mansard refuses (heads that do not divide, a format the hardware cannot use) is counted in `dropped`.
    """
    groups: list[Group] = []
    for members in by_group(rows).values():
        first = members[0]
        spec, where = model_spec(first.model), hardware(first.gpu)
        plan = PrecisionPlan.published(spec, first.weights, first.kv)
        try:
            program = decoder(spec, tensor_parallel=first.layout.tensor_parallel)
            priced = PricedProgram(program, where, profile_for(where, first.engine), plan, first.layout)
        except ValueError as error:
            if dropped is not None:
                dropped[f"refused: {str(error).split(';')[0].split(' = ')[0]}"] += len(members)
            continue
        capacity = priced.kv_capacity_tokens()
        load = Load(
            input_tokens=np.array([r.input_tokens for r in members]),
            output_tokens=np.array([r.output_tokens for r in members]),
            concurrency=np.array([r.concurrency for r in members]),
            capacity_tokens=capacity,
            equal_lengths=first.equal_lengths,
            static=first.scenario == "static",
        )
        groups.append(Group(members, priced, load, capacity))
    return groups


def predict(groups: Iterable[Group], profile: Callable[[Group], Profile] | None = None) -> dict[str, Floats]:
    """Return predicted TTFT, TPOT and throughput in the order of the groups' rows."""
    parts: dict[str, list[Floats]] = {"ttft": [], "tpot": [], "throughput": []}
    for group in groups:
        if profile is not None:
            group.priced.profile = profile(group)
        found = serve(group.priced, group.load)
        first = group.rows[0]
        client = CLIENTS.get(first.engine, 0.0) if first.scenario == "closed-loop" and first.equal_lengths else 0.0
        parts["ttft"].append(np.asarray(found.ttft_s) + client)
        parts["tpot"].append(np.asarray(found.tpot_s))
        parts["throughput"].append(np.asarray(found.output_tokens_per_s))
    return {key: np.concatenate(value) for key, value in parts.items()}
