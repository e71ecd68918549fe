"""Which engine runs on which hardware, and what it can split: so that no plan names a combination that does not start.

Facts are coarse on purpose: a family of devices, not a driver version. Sources, read in December 2026: vLLM
"Installation" (NVIDIA compute capability 7.0 and above, AMD MI200 and later and RX 7900, Intel Xe, Gaudi, TPU, AWS
Neuron, x86 and Apple CPUs); SGLang "Installation" (NVIDIA, AMD MI300, TPU, Xeon, Ascend); TensorRT-LLM "Support matrix"
(Ampere, Ada, Hopper, Blackwell); llama.cpp README, "Supported backends".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.cost.op_cost import Layout
from mansard.specs.hardware import HardwareSpec
from mansard.specs.number_formats import format_kind

_AMPERE_ON = frozenset({"ampere", "ada", "hopper", "blackwell", "rubin"})
_NVIDIA = _AMPERE_ON | {"volta", "turing"}
_CDNA = frozenset({"cdna2", "cdna3", "cdna4", "cdna5"})


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """What an engine runs on and how it can be split; `label` is how it calls itself."""

    label: str
    families: frozenset[str]
    tensor_parallel: bool = True
    data_parallel: bool = True
    layer_split: bool = True
    gguf_only: bool = False


ENGINES: Mapping[str, EngineSupport] = {
    "vllm": EngineSupport(
        "vLLM", _NVIDIA | _CDNA | {"rdna3", "xe2", "gaudi2", "gaudi3", "tpu", "neuron", "cpu", "ascend"}
    ),
    "sglang": EngineSupport("SGLang", _NVIDIA - {"volta"} | {"cdna3", "cdna4", "cdna5", "tpu", "cpu", "ascend"}),
    "trtllm": EngineSupport("TensorRT-LLM", _AMPERE_ON),
    "llama.cpp": EngineSupport(
        "llama.cpp",
        _NVIDIA | _CDNA | {"rdna3", "xe2", "apple", "cpu", "ascend"},
        tensor_parallel=False,
        data_parallel=False,
        gguf_only=True,
    ),
    "mansard": EngineSupport(
        "Mansard", frozenset({"cpu"}) | _AMPERE_ON, tensor_parallel=False, data_parallel=False, layer_split=False
    ),
}
ALIASES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}


def find_engine_name(name: str) -> str:
    """Return the canonical name of an engine.

    Raises: ValueError naming the known ones.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; choose one of {', '.join(ENGINES)}")
    return key


def engine_for(hardware: HardwareSpec, weights: str = "bf16") -> str:
    """Return the engine that a plan assumes on `hardware` when none is named: vLLM where it runs, else llama.cpp.

    This machine, measured, is planned for Mansard itself, GGUF kinds of weights for llama.cpp.
    """
    if hardware.vendor == "host":
        return "mansard"
    if format_kind(weights) == "gguf":
        return "llama.cpp"
    return "vllm" if hardware.family in ENGINES["vllm"].families else "llama.cpp"


def engine_problem(name: str, hardware: HardwareSpec, layout: Layout) -> str | None:
    """Return why the engine cannot run so on `hardware`, or None."""
    engine = ENGINES[name]
    if hardware.family not in engine.families:
        return f"{engine.label} does not run on {hardware.name}"
    if layout.tensor_parallel > 1 and not engine.tensor_parallel:
        return f"{engine.label} is not planned with tensor parallelism (asked: {layout.tensor_parallel})"
    if layout.pipeline_parallel > 1 and not engine.layer_split:
        return f"{engine.label} runs on one device (asked: {layout.pipeline_parallel} stages)"
    if layout.data_parallel > 1 and not engine.data_parallel:
        return f"{engine.label} has no data-parallel attention (asked: {layout.data_parallel})"
    return None
