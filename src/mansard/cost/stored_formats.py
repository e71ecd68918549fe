"""The number format a model is published in, and the one a device stores it in when nothing else is asked for.

`auto` weights are what the publisher ships: 16 bits for most, 8 for DeepSeek-V3 and its kin, 4 for the experts of
gpt-oss. A device without bf16 keeps 16-bit weights as fp16.

Sources: `quantization_config` of openai/gpt-oss-*, deepseek-ai/DeepSeek-V3, moonshotai/Kimi-K2-Instruct and
MiniMaxAI/MiniMax-M2 on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from mansard.cost.formats import PrecisionPlan
from mansard.specs.hardware import HardwareSpec
from mansard.specs.model import ModelSpec
from mansard.specs.number_formats import support

_PUBLISHED = {"gpt_oss": "mxfp4", "deepseek_v3": "fp8", "kimi_k2": "fp8", "minimax_m2": "fp8"}
SIXTEEN_BIT = ("bf16", "fp16")


def published_format(spec: ModelSpec) -> str:
    """Return the format that `spec`'s publisher ships its large matrices in."""
    if spec.name.startswith(("moonlight", "kimi-vl")):  # DeepSeek-V3 shapes, published in 16 bits
        return "bf16"
    return _PUBLISHED.get(spec.model_type, "bf16")


def checkpoint_format(config: Mapping[str, object]) -> str | None:
    """Return the format that a config.json's `quantization_config` declares, or None when it declares none.

    Raises: ValueError for a method that has no known size, naming it.
    """
    section = config.get("quantization_config")
    if not isinstance(section, Mapping):
        return None
    method = str(section.get("quant_method", "")).lower()
    bits, group = section.get("bits"), section.get("group_size", 128)
    if method in ("gptq", "awq"):
        bits = bits if isinstance(bits, int) else 4
        return f"int{bits}-g{group}" if isinstance(group, int) and group > 0 else "int4" if bits == 4 else "int8"
    if method in ("fp8", "mxfp4", "fbgemm_fp8"):
        return "mxfp4" if method == "mxfp4" else "fp8"
    if method == "bitsandbytes":
        return "nf4" if section.get("load_in_4bit") else "int8"
    if method in ("compressed-tensors", "modelopt"):
        return _tensor_scheme(section)
    raise ValueError(f"quantization method {method!r} has no known size (give --weights, for example int4)")


def _tensor_scheme(section: Mapping[str, object]) -> str:
    """Read the first group of a compressed-tensors or ModelOpt configuration: its number of bits and its type."""
    if "NVFP4" in str(section.get("quant_algo", "")):
        return "nvfp4"
    groups = section.get("config_groups")
    first: object = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    scheme = weights if isinstance(weights, Mapping) else {}
    bits, kind = scheme.get("num_bits", 8), scheme.get("type", "float")
    if bits == 4:
        return "nvfp4" if kind == "float" else "int4"
    return "fp8" if kind == "float" else "int8"


def stored_weights(name: str, spec: ModelSpec, hardware: HardwareSpec) -> str:
    """Return the weight format that `name` (`auto` or a format) means for `spec` on `hardware`."""
    wanted = published_format(spec) if name == "auto" else name
    return _sixteen(wanted, hardware)


def stored_kv(name: str, hardware: HardwareSpec) -> str:
    """Return the KV-cache format that `name` (`auto` or a format) means on `hardware`."""
    return _sixteen("bf16" if name == "auto" else name, hardware)


def on_hardware(plan: PrecisionPlan, hardware: HardwareSpec) -> PrecisionPlan:
    """Return `plan` with its 16-bit parts in the 16-bit format that `hardware` has."""
    return replace(plan, **{f.name: _sixteen(getattr(plan, f.name), hardware) for f in fields(plan)})


def _sixteen(name: str, hardware: HardwareSpec) -> str:
    """Return the other 16-bit format where a device has only that one: fp16 on Volta, Turing and Apple."""
    if name in SIXTEEN_BIT and support(hardware, name) == "none":
        return next((other for other in SIXTEEN_BIT if support(hardware, other) != "none"), name)
    return name
