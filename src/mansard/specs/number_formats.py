"""What a piece of hardware does with a number format: multiplies it, converts it first, or cannot use it.

"native": its matrix units multiply the format. "emulated": it is stored so and converted to a 16-bit format
on the way to the matrix units (weight-only kernels), which saves memory and bandwidth but no arithmetic.
"none": no engine that we know of runs it there. Sources: the engines' support tables (vLLM quantization
hardware support, Marlin and FP6-LLM kernels, llama.cpp back ends) and vendors' data sheets; general knowledge
where a table is silent.
"""

from __future__ import annotations

from typing import Literal

from mansard.specs.hardware import HardwareSpec

Support = Literal["native", "emulated", "none"]

_AMPERE_ON = frozenset({"ampere", "ada", "hopper", "blackwell", "rubin"})
_TURING_ON = _AMPERE_ON | {"turing"}
_AMD = frozenset({"cdna2", "cdna3", "cdna4", "cdna5", "rdna3"})
_LLAMA_CPP = _TURING_ON | _AMD | {"volta", "xe2", "apple", "cpu"}

# Families that store a format and compute in 16 bit, where no native rate is listed.
_EMULATED: dict[str, frozenset[str]] = {
    "fp32": frozenset(),
    "fp16": frozenset({"cpu"}),
    "bf16": frozenset({"apple", "cpu"}),
    "fp8": _TURING_ON | {"xe2", "tpu"},
    "int8": _LLAMA_CPP | {"tpu", "neuron", "gaudi2", "gaudi3"},
    "int4": _LLAMA_CPP | {"tpu", "gaudi2", "gaudi3"},
    "fp6": _AMPERE_ON,
    "fp4": _TURING_ON | {"cdna3"},
    "nvfp4": _TURING_ON,
    "mxfp4": _LLAMA_CPP - {"volta"},
}

# The rate in HardwareSpec.flops that a native format needs; int4 weights (W4A16) are never multiplied as
# int4.
_NATIVE_RATE = {kind: kind for kind in ("fp32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4")}
_NATIVE_RATE |= {"nvfp4": "fp4", "mxfp4": "fp4"}

FORMATS = tuple(_EMULATED)


def format_kind(name: str) -> str:
    """Return the entry of `FORMATS` that `name` belongs to, or "gguf" for a block format of llama.cpp.

    Raises: ValueError for a name that is neither.
    """
    text = name.lower()
    spelled = {
        "float32": "fp32",
        "float16": "fp16",
        "bfloat16": "bf16",
        "f32": "fp32",
        "f16": "fp16",
        "half": "fp16",
    }
    text = spelled.get(text, text)
    if text.startswith(("fp8", "float8")):
        return "fp8"
    if text.startswith(("q2_", "q3_", "q4_", "q5_", "q6_", "q8_", "iq", "tq")):
        return "gguf"
    if text.startswith("nf4"):
        return "int4"  # bitsandbytes: 4-bit codes, converted to 16 bits like any weight-only format
    for kind in ("int8", "int4", "nvfp4", "mxfp4", "fp6", "fp4"):
        if text.startswith(kind):
            return kind
    if text in _EMULATED:
        return text
    raise ValueError(f"unknown number format {name!r}: known are {', '.join(FORMATS)} and GGUF kinds such as q4_k")


def support(hardware: HardwareSpec, name: str) -> Support:
    """Say what `hardware` does with weights or a KV cache in the format `name`."""
    kind = format_kind(name)
    if kind == "gguf":
        return "emulated" if hardware.family in _LLAMA_CPP else "none"
    rate = _NATIVE_RATE.get(kind)
    nvidia_only = kind == "nvfp4" and hardware.vendor != "NVIDIA"
    if rate in hardware.flops and not nvidia_only:
        return "native"
    return "emulated" if hardware.family in _EMULATED[kind] else "none"


def compute_dtype(hardware: HardwareSpec, name: str) -> str:
    """Return the format whose rate bounds a multiplication with weights in the format `name`.

    Raises: ValueError when the hardware cannot use the format, with one that it can.
    """
    found = support(hardware, name)
    if found == "none":
        raise ValueError(f"{hardware.name} cannot run {name} (its 16-bit format is {hardware.matmul_dtype})")
    return _NATIVE_RATE[format_kind(name)] if found == "native" else hardware.matmul_dtype
