"""Question: what a plan is asked: a model, a load, limits of latency, and what may vary.

Everything that can be left open is: hardware, number of devices, split, formats, batch. What is fixed is not searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.cost.op_cost import Layout
from mansard.cost.steady_state import Speculation
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import catalogue
from mansard.specs.model import ModelSpec
from mansard.specs.slo import Slo
from mansard.specs.workload import Workload, find_workload

Objective = Literal["cheapest", "fewest", "fastest"]
OBJECTIVES: tuple[Objective, ...] = ("cheapest", "fewest", "fastest")
MAX_DEVICES = 16  # of one replica, when the number is open
MAX_FLEET = 4096  # devices in all, when a rate asks for replicas
# Kept where it can be when no service level is given: faster than reading, and an answer that begins at once.
COMFORT = Slo(ttft_s=2.0, tpot_s=0.050, percentile=90.0, name="comfort", source="assumed")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `hardware` empty: the whole catalogue. `num_devices` None: as many as it takes.

    `weights` and `kv` are formats to consider; `auto` is what the publisher ships, and 16 bits for the cache. Without
    `slo`, latency is free, and `COMFORT` only decides how many requests run at once.
    """

    spec: ModelSpec
    workload: Workload
    slo: Slo | None = None
    hardware: tuple[HardwareSpec, ...] = ()
    num_devices: int | None = None
    engine: str = "auto"
    weights: tuple[str, ...] = ("auto",)
    kv: tuple[str, ...] = ("auto",)
    layout: Layout | None = None
    objective: Objective = "cheapest"
    max_model_len: int | None = None
    memory_fraction: float | None = None
    num_batched_tokens: int | None = None
    max_devices: int = MAX_DEVICES
    other_parameters: int = 0
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        """Check what has limits.

        Raises: ValueError with the value and its limits.
        """
        if self.objective not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        if self.num_devices is not None and self.num_devices < 1:
            raise ValueError(f"{self.num_devices} devices: at least 1 is needed")
        limit = self.spec.max_position_embeddings
        if self.max_model_len is not None and not 1 <= self.max_model_len <= limit:
            raise ValueError(
                f"max_model_len {self.max_model_len:,} must lie between 1 and the model's {limit:,} tokens"
            )

    @property
    def candidates(self) -> tuple[HardwareSpec, ...]:
        """Return the hardware to consider."""
        return self.hardware or tuple(catalogue().values())

    @property
    def context(self) -> int:
        """Return the longest request a deployment must hold: given, or the workload's within the model's context."""
        limit = self.spec.max_position_embeddings
        return self.max_model_len or min(limit, self.workload.max_model_len)

    @property
    def input_tokens(self) -> float:
        """Return the mean prompt, cut where it leaves no room in the context."""
        return min(self.workload.mean_input_tokens, self.context - 1.0)

    @property
    def output_tokens(self) -> float:
        """Return the mean output that fits behind the mean prompt."""
        return max(1.0, min(self.workload.mean_output_tokens, self.context - self.input_tokens))

    @property
    def limits(self) -> Slo:
        """Return the limits a load is chosen by: the given ones, or `COMFORT`."""
        return self.slo or COMFORT

    @property
    def has_load(self) -> bool:
        """Say whether a rate or a concurrency is given."""
        return self.workload.rate_req_s is not None or self.workload.concurrency is not None

    @property
    def problem(self) -> str | None:
        """Return why no deployment can answer: the mean request exceeds the context."""
        mean = self.workload.mean_input_tokens + self.workload.mean_output_tokens
        if mean <= self.context:
            return None
        return f"the mean request of {mean:,.0f} tokens exceeds the context of {self.context:,}"


def chat() -> Workload:
    """Return the workload that a plan assumes when none is given."""
    return find_workload("chat")
