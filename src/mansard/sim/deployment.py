"""Deployment: a model on hardware, as a simulation needs it: what a step costs and how many KV blocks there are.

A replica is one engine, with one exception: data-parallel attention ranks, and the micro-batches of pipeline stages,
each have sequences and KV of their own, so they are simulated as `lanes` of a replica, each one engine that assumes the
others to be as busy as itself.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from mansard.core.config import SchedulerConfig
from mansard.cost.formats import PrecisionPlan
from mansard.cost.memory import Ledger, Serving, ledger
from mansard.cost.op_cost import Layout, kv_bytes_per_token
from mansard.cost.profiles import ENGINE_ALIASES, Profile, profile_for
from mansard.cost.roofline import PricedProgram
from mansard.program.decoder import decoder
from mansard.specs.hardware import GIB, HardwareSpec
from mansard.specs.model import ModelSpec

DECODES_PER_STEP = 1024  # set aside beside an imported prompt in a decode replica's step


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Prefill and decode on replicas of their own; KV is sent over a link when a prompt is computed.

    Units: link of one device in bytes per second, seconds. `bytes_per_s=None` is the hardware's inter-node link.
    """

    num_prefill_replicas: int
    num_decode_replicas: int
    bytes_per_s: float | None = None
    latency_s: float = 0.001

    def __post_init__(self) -> None:
        if self.num_prefill_replicas < 1 or self.num_decode_replicas < 1:
            raise ValueError(
                f"{self.num_prefill_replicas} prefill and {self.num_decode_replicas} decode replicas; "
                "there must be at least one of each"
            )


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on `num_replicas` times `layout.num_ranks` devices.

    memory_fraction: of the device's memory, None for the engine's default. num_kv_blocks: the blocks of one
    data-parallel rank, None to leave them to the memory ledger. profile: constants of one's own, None for those of
    `engine` on this hardware. sampled_lanes: how many lanes of a replica to simulate when the others would do the same;
    None for all.
    """

    spec: ModelSpec
    hardware: HardwareSpec
    layout: Layout = field(default_factory=Layout)
    precision: PrecisionPlan = field(default_factory=PrecisionPlan)
    engine: str = "vllm"
    num_replicas: int = 1
    memory_fraction: float | None = None
    num_kv_blocks: int | None = None
    block_size: int = 16
    disaggregation: Disaggregation | None = None
    profile: Profile | None = None
    sampled_lanes: int | None = None
    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"num_replicas is {self.num_replicas}; it must be at least 1")

    @property
    def num_devices(self) -> int:
        """Return how many devices there are in all."""
        split = self.disaggregation
        replicas = split.num_prefill_replicas + split.num_decode_replicas if split else self.num_replicas
        return replicas * self.layout.num_ranks

    @property
    def num_lanes(self) -> int:
        """Return how many engines one replica is simulated as."""
        return self.sampled_lanes or self.layout.data_parallel * self.layout.pipeline_parallel

    @property
    def priced(self) -> PricedProgram:
        """Return the model prepared for pricing.

        Raises: ValueError when the layout or a format is impossible.
        """
        if "priced" not in self._known:
            program = decoder(self.spec, tensor_parallel=self.layout.tensor_parallel)
            profile = self.profile or profile_for(self.hardware, self.engine)
            self._known["priced"] = PricedProgram(program, self.hardware, profile, self.precision, self.layout)
        found: PricedProgram = self._known["priced"]
        return found

    @property
    def admission_delay_s(self) -> float:
        """Return a request's fixed time outside the steps: tokenize, admit, stream its first token."""
        fitted = _first_token_table().get(ENGINE_ALIASES.get(self.engine, self.engine), {})
        return max(0.0, self.priced.profile.engine.first_token_s + float(fitted.get("seconds", 0.0)))

    def scheduler_config(self, max_model_len: int, **changes: Any) -> SchedulerConfig:
        """Return the engine's defaults with `changes`.

        Raises: ValueError naming a value out of range.
        """
        engine = self.priced.profile.engine
        settings: dict[str, Any] = {
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_num_seqs": min(engine.max_num_seqs, engine.max_num_batched_tokens),
            "max_model_len": max_model_len,
        }
        return SchedulerConfig(**(settings | {k: v for k, v in changes.items() if v is not None}))

    def ledger(self, config: SchedulerConfig) -> Ledger:
        """Return where a device's memory goes."""
        serving = Serving(
            fraction=self.memory_fraction,
            max_model_len=config.max_model_len,
            num_batched_tokens=config.max_num_batched_tokens,
            num_seqs=config.max_num_seqs,
            block_size=self.block_size,
        )
        return ledger(self.spec, self.hardware, self.precision, self.layout, serving)

    def blocks_per_lane(self, config: SchedulerConfig) -> int:
        """Return how many KV blocks one lane has.

        Raises: ValueError with the reasons when the model does not fit.
        """
        if self.num_kv_blocks is not None:
            return max(1, self.num_kv_blocks // self.layout.pipeline_parallel)
        found = self.ledger(config)
        if not found.fits:
            raise ValueError(
                f"{self.spec.name or self.spec.model_type} does not fit on {self.layout.num_ranks} × "
                f"{self.hardware.name}: {'; '.join(found.problems)} (use more devices, fewer bits, a shorter "
                "--max-model-len or another --memory-fraction)"
            )
        return max(1, found.pool.num_tokens // self.block_size // self.layout.pipeline_parallel)

    def transfer_s(self, num_tokens: int) -> float:
        """Return how long it takes to send the KV of `num_tokens` to another replica, all ranks at once."""
        split = self.disaggregation
        assert split is not None
        priced = self.priced
        per_token = sum(n * kv_bytes_per_token(op, priced.formats) for op, n in priced.groups)
        per_token /= self.layout.pipeline_parallel
        return split.latency_s + num_tokens * per_token / (split.bytes_per_s or self._inter_node_bytes_per_s())

    def usd_per_hour(self) -> float | None:
        """Return what the deployment costs per hour; None when the hardware's price is not known."""
        price = self.hardware.price
        return None if price is None else price.usd_per_hour * self.num_devices

    def describe(self) -> str:
        """Return the deployment in one line."""
        kv = self.precision.kv
        return (
            f"{self.spec.name or self.spec.model_type} on {self.num_devices} × {self.hardware.name} "
            f"(tp{self.layout.tensor_parallel} pp{self.layout.pipeline_parallel} dp{self.layout.data_parallel}, "
            f"{self.precision.mlp} weights, {kv} KV, {self.hardware.visible_memory_bytes / GIB:.0f} GiB each)"
        )

    def _inter_node_bytes_per_s(self) -> float:
        return self.hardware.inter_node_link.bytes_per_s


@functools.cache
def _first_token_table() -> Mapping[str, Any]:
    file = resources.files("mansard.sim") / "first_token.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
