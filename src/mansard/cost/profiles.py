"""Profile: the few named constants that turn a roofline into a prediction, each with its source.

A profile joins an architecture family (how much of the peak its kernels reach, how long a kernel takes to
start) and an engine (what a step and a request cost on the host, how it mixes prompts with decodes). The
numbers live in `profiles/*.toml`; `benchmarks/fit_profiles.py` writes them.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from mansard.cost.collectives import LinkConstants
from mansard.cost.shape import Number
from mansard.specs.hardware import HardwareSpec

ENGINE_ALIASES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "llamacpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class FamilyConstants:
    """What an architecture's kernels reach. Units: seconds; efficiencies are shares of the dense peak or
    bandwidth.

    `gemm_memory`, `moe_memory` and `decode_attention_memory` are by stored width (16, 8, 4 bits), `gemm_compute` by
    number format. Prefill attention
    reaches `prefill_attention_peak` · n / (n + `prefill_attention_half_tokens`) of the 16-bit peak over n
    tokens.
    """

    gemm_floor_s: float
    gemm_memory: Mapping[str, float] = field(hash=False)
    gemm_compute: Mapping[str, float] = field(hash=False)
    decode_attention_floor_s: float
    decode_attention_memory: Mapping[str, float] = field(hash=False)
    prefill_attention_peak: float
    prefill_attention_half_tokens: float
    elementwise_floor_s: float
    elementwise_memory: float
    moe_floor_s: float
    moe_memory: Mapping[str, float] = field(hash=False)
    moe_compute: float
    linear_attention_floor_s: float
    calibrated: bool
    source: str


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """What an engine adds and how it schedules. Units: seconds, tokens.

    `floor_scale` multiplies every kernel floor (launch by CUDA graph: 1), `memory_scale` every memory efficiency,
    `compute_scale` every compute efficiency, `moe_scale` both of the experts' kernels,
    `network_scale` the time of collectives (fused with the norm after them: below 1).
    `kv_traffic` is how often decode attention moves its keys and values: once in fused kernels, more where they are
    concatenated and repeated for every head (transformers). `first_token_s` is a request's fixed cost before its first
    token: tokenize, admit, sample, stream; `prompt_layer_s` and `prompt_moe_layer_s` are what a layer costs more in a
    step with a prompt, which runs outside the CUDA graph. `burst_share` is the share of a closed loop's requests that
    arrive together, `lockstep_share` the same when all requests have equal lengths, so that a batch that began together
    ends together; then `slot_wait` of a request waits on average for a running one to end. Under data-parallel
    attention a prompt waits `data_parallel_wait_steps` steps until the ranks' prompts start together.
    """

    step_overhead_s: float
    sequence_overhead_s: float
    first_token_s: float
    prompt_layer_s: float
    prompt_moe_layer_s: float
    floor_scale: float
    memory_scale: float
    compute_scale: float
    moe_scale: float
    network_scale: float
    kv_traffic: float
    mixes_prefill: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    burst_share: float
    lockstep_share: float
    slot_wait: float
    data_parallel_wait_steps: float
    calibrated: bool
    source: str


@dataclass(frozen=True, slots=True)
class Interval:
    """How far measurements lie from predictions: the 10 % and 90 % quantiles of measured ÷ predicted."""

    low: float
    high: float
    num_rows: int
    source: str = ""

    def around(self, value: Number) -> tuple[Number, Number]:
        """Return the low and high ends around a predicted value."""
        return value * self.low, value * self.high


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants a price uses, and whether they were fitted for this engine on this architecture."""

    name: str
    family: FamilyConstants
    engine: EngineConstants
    links: Mapping[str, LinkConstants] = field(hash=False)
    calibrated: bool

    def link(self, kind: str) -> LinkConstants:
        """Return the constants of the nearest known kind of link: `nvlink4-bridge` is priced as `nvlink`."""
        known = next((k for k in self.links if k != "other" and kind.startswith(k)), "other")
        return self.links[known]


@functools.cache
def _table(name: str) -> Mapping[str, Any]:
    file = resources.files("mansard.cost") / "profiles" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def family_names() -> tuple[str, ...]:
    """Return the architecture families that have constants."""
    return tuple(_table("families"))


def engine_names() -> tuple[str, ...]:
    """Return the engines that have constants."""
    return tuple(_table("engines"))


@functools.cache
def family_constants(name: str) -> FamilyConstants:
    """Return the constants of an architecture family; an unknown one gets those of `generic`, uncalibrated."""
    table = _table("families")
    entry = dict(table["generic"])
    chain = [name]
    while (parent := table.get(chain[-1], {}).get("like")) is not None:
        chain.append(parent)
    for step in reversed(chain):
        own = {k: v for k, v in table.get(step, {}).items() if k != "like"}
        for key, value in own.items():
            entry[key] = {**entry[key], **value} if isinstance(value, dict) else value
    entry["calibrated"] = bool(table.get(name, {}).get("calibrated", False))
    return FamilyConstants(**entry)


@functools.cache
def engine_constants(name: str) -> EngineConstants:
    """Return the constants of an engine.

    Raises: ValueError for an unknown engine, naming those known.
    """
    key = ENGINE_ALIASES.get(name.lower(), name.lower())
    table = _table("engines")
    if key not in table:
        raise ValueError(f"unknown engine {name!r}; choose one of {', '.join(table)}")
    return EngineConstants(**table[key])


@functools.cache
def link_constants() -> Mapping[str, LinkConstants]:
    """Return the constants of each kind of link."""
    return {kind: LinkConstants(**entry) for kind, entry in _table("links").items()}


def family_name(hardware: HardwareSpec) -> str:
    """Return the family whose constants a hardware uses: its exact architecture where it has its own."""
    exact = hardware.architecture.lower()
    return exact if exact in _table("families") else hardware.family


def profile_for(hardware: HardwareSpec, engine: str = "vllm") -> Profile:
    """Return the profile of an engine on a hardware's architecture family.

    Raises: ValueError for an unknown engine.
    """
    family, host = family_constants(family_name(hardware)), engine_constants(engine)
    name = f"{ENGINE_ALIASES.get(engine.lower(), engine.lower())} on {family_name(hardware)}"
    return Profile(name, family, host, link_constants(), family.calibrated and host.calibrated)


def interval_for(metric: str, model_class: str, profile: Profile) -> Interval:
    """Return the published residual interval of a metric (tpot, ttft, throughput) for a model class.

    A profile without a fit gets the widest published interval, doubled on each side: it says "uncalibrated"
    too.
    """
    table = _table("intervals")
    entry = table.get(f"{model_class}-{metric}", table[f"all-{metric}"])
    found = Interval(**entry)
    return found if profile.calibrated else Interval(found.low / 2.0, found.high * 2.0, 0, "uncalibrated")
