"""PrecisionPlan and Formats: which number format each part of a model is stored in, and what that costs.

Checkpoints never quantize everything: the output head, the router and the norms stay in 16 bits, an "fp4"
DeepSeek keeps its attention in higher precision, gpt-oss packs its experts alone. One bit width for the whole
model is wrong by up to 2x at batch 1, so the plan names a format for each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mansard.specs.hardware import HardwareSpec
from mansard.specs.model import ModelSpec
from mansard.specs.number_formats import compute_dtype, support
from mansard.specs.precision import number_format

Part: TypeAlias = Literal["attention", "mlp", "experts", "head", "router", "none"]
Width: TypeAlias = Literal["16", "8", "4"]  # the class of stored width that kernel efficiencies are known for


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """The stored format of every part, by name of `mansard.specs.number_formats`."""

    attention: str = "bf16"
    mlp: str = "bf16"
    experts: str = "bf16"
    head: str = "bf16"
    router: str = "bf16"
    kv: str = "bf16"

    @classmethod
    def uniform(cls, weights: str, kv: str = "bf16", head: str | None = None) -> PrecisionPlan:
        """Return the plan that stores every matrix but router and head as `weights`.

        The head stays at 16 bits unless the format is a GGUF or bitsandbytes kind, whose files quantize it
        too.
        """
        sixteen = weights if weights in ("fp32", "fp16", "bf16") else "bf16"
        whole_file = number_format(weights).name.startswith(("Q", "IQ"))
        return cls(weights, weights, weights, head or (weights if whole_file else sixteen), sixteen, kv)

    @classmethod
    def published(cls, spec: ModelSpec, weights: str, kv: str = "bf16") -> PrecisionPlan:
        """Return the plan of the checkpoint that publishers ship under this name for this kind of model.

        Sources: the quantization configs of openai/gpt-oss-*, moonshotai/Kimi-K2.5 and nvidia/*-NVFP4 on
        Hugging Face: 4-bit mixtures of experts keep attention, shared experts and head at 16 bits (NVFP4
        DeepSeek: dense MLPs packed).
        """
        plan = cls.uniform(weights, kv)
        if spec.moe is None or number_format(weights).bits > 4 or plan.head == weights:
            return plan
        return replace(plan, attention="bf16", mlp=weights if weights == "nvfp4" else "bf16")


@dataclass(frozen=True, slots=True)
class PartFormat:
    """What one part's format costs on one hardware: stored bytes and the rate of its multiplications."""

    bytes_per_weight: float
    rate: str  # key of HardwareSpec.flops
    width: Width
    emulated: bool  # converted to 16 bits on the way: weight-only kernels


@dataclass(frozen=True, slots=True)
class Formats:
    """A precision plan resolved for one hardware. Units: bytes a value."""

    parts: Mapping[Part, PartFormat]
    kv_bytes: float = 2.0
    state_bytes: float = 4.0  # recurrent state of linear attention is kept in fp32
    activation_bytes: float = 2.0

    @property
    def kv_width(self) -> Width:
        """Return the class of stored width of the KV cache."""
        return "16" if self.kv_bytes >= 2.0 else "8" if self.kv_bytes >= 0.9 else "4"

    def weight_bytes(self, part: Part) -> float:
        """Return the stored bytes of one weight of `part`, scales included."""
        return self.parts[part].bytes_per_weight


def resolve_formats(plan: PrecisionPlan, hardware: HardwareSpec) -> Formats:
    """Return what `plan` costs on `hardware`.

    Raises: ValueError when the hardware cannot use one of the formats.
    """
    parts: dict[Part, PartFormat] = {
        "attention": _part(plan.attention, hardware),
        "mlp": _part(plan.mlp, hardware),
        "experts": _part(plan.experts, hardware),
        "head": _part(plan.head, hardware),
        "router": _part(plan.router, hardware),
        "none": PartFormat(2.0, hardware.matmul_dtype, "16", False),
    }
    activation = 4.0 if plan.attention == "fp32" else 2.0
    return Formats(parts, number_format(plan.kv).bits_per_weight / 8.0, 4.0, activation)


def _part(name: str, hardware: HardwareSpec) -> PartFormat:
    fmt = number_format(name)
    width: Width = "16" if fmt.bits > 8 else "8" if fmt.bits > 4 else "4"
    emulated = support(hardware, name) == "emulated"
    return PartFormat(fmt.bits_per_weight / 8.0, compute_dtype(hardware, name), width, emulated)
