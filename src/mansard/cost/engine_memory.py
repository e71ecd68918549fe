"""What each engine's memory fraction is a fraction of, and what it keeps beside weights and KV cache.

The same number means different things: vLLM's is of the whole device and everything comes out of it; SGLang's
leaves activations outside; TensorRT-LLM's is of what is free after loading; LMDeploy's of what the weights
leave. All sizes are per device. Constants are fitted to the logs of vLLM 0.19 on H100 (jgchn/llm-d-planner,
Apache-2.0, 39 runs); see `docs/cost_model.md` for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.specs.hardware import GIB, HardwareSpec, LinkSpec
from mansard.specs.model import ModelSpec

FractionOf = Literal["total", "total_static", "free_after_load", "total_minus_weights"]


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """One engine's conventions.

    `bytes_per_logit`: sampler workspace per sequence and vocabulary entry (logits in 16 and 32 bit, sorted values
    and indices). `runtime_gib`: libraries counted against the budget. `profiles_whole_prompt`: without chunked
    prefill the profiling run is as long as the context. `allocates_after_pool`: graphs and the sampler's warm-up
    come beside the budget.
    """

    name: str
    fraction_of: FractionOf
    default_fraction: float
    block_size: int = 16
    bytes_per_logit: float = 14.43
    runtime_gib: float = 0.25
    base_activation_gib: float = 0.07
    profiles_whole_prompt: bool = False
    allocates_after_pool: bool = False
    source: str = ""

    def pool_bytes(self, total: float, weights: float, other: float, fraction: float) -> float:
        """Return the bytes of the KV cache. Units: bytes; `other` is activations, workspace and runtime.

        Source: vLLM gpu_memory_utilization, SGLang mem_fraction_static, TensorRT-LLM
        free_gpu_memory_fraction, LMDeploy cache_max_entry_count (above 0.2.1).
        """
        if self.fraction_of == "total":
            return fraction * total - weights - other
        if self.fraction_of == "total_static":
            return fraction * total - weights
        if self.fraction_of == "free_after_load":
            return fraction * (total - weights - other)
        return fraction * (total - weights)

    def fraction_for(self, pool: float, total: float, weights: float, other: float) -> float:
        """Return the fraction that gives a KV cache of `pool` bytes: the inverse of `pool_bytes`."""
        if self.fraction_of == "total":
            return (pool + weights + other) / total
        if self.fraction_of == "total_static":
            return (pool + weights) / total
        if self.fraction_of == "free_after_load":
            return pool / (total - weights - other)
        return pool / (total - weights)


VLLM = EngineMemory("vllm", "total", 0.90, allocates_after_pool=True, source="vLLM 0.19")
VLLM_06 = EngineMemory(
    "vllm-0.6",
    "total",
    0.90,
    bytes_per_logit=0.0,
    runtime_gib=0.35,
    base_activation_gib=0.0,
    profiles_whole_prompt=True,
    allocates_after_pool=True,
    source="vllm-project/vllm#10517: the sampler is not profiled",
)
SGLANG = EngineMemory(
    "sglang", "total_static", 0.88, block_size=1, allocates_after_pool=True, source="mem_fraction_static"
)
TRTLLM = EngineMemory("trtllm", "free_after_load", 0.90, block_size=64, source="free_gpu_memory_fraction")
LMDEPLOY = EngineMemory("lmdeploy", "total_minus_weights", 0.80, block_size=64, source="cache_max_entry_count")
LLAMA_CPP = EngineMemory(
    "llama.cpp", "total", 0.98, block_size=1, bytes_per_logit=4.0, source="KV is allocated whole: slots × context"
)
MANSARD = EngineMemory("mansard", "total", 0.90, bytes_per_logit=8.0, source="this package")

ENGINES = {e.name: e for e in (VLLM, VLLM_06, SGLANG, TRTLLM, LMDEPLOY, LLAMA_CPP, MANSARD)}


def find_engine(name: str) -> EngineMemory:
    """Return the conventions of the engine called `name`.

    Raises: ValueError naming the known ones.
    """
    found = ENGINES.get(name.lower().replace("tensorrt-llm", "trtllm").replace("llamacpp", "llama.cpp"))
    if found is None:
        raise ValueError(f"unknown engine {name!r}: known are {', '.join(ENGINES)}")
    return found


def default_batched_tokens(hardware: HardwareSpec) -> int:
    """Return vLLM's default token budget of a step: 8,192 on devices of 70 GiB and more but A100, else 2,048."""
    return 8192 if _is_large(hardware) else 2048


def default_num_seqs(hardware: HardwareSpec) -> int:
    """Return vLLM's default limit of running sequences: 1,024 on large devices, else 256."""
    return 1024 if _is_large(hardware) else 256


def unchunked_batched_tokens(max_model_len: int) -> int:
    """Return the profiled tokens of an engine that chunks prefill only for contexts above 32,768 tokens: then 512.

    Source: vLLM 0.6 (vllm-project/vllm#10517), where a longer context may therefore fit when a shorter one
    does not.
    """
    return 512 if max_model_len > 32_768 else max(2048, max_model_len)


def _is_large(hardware: HardwareSpec) -> bool:
    return hardware.visible_memory_bytes >= 70 * GIB and not hardware.name.startswith("A100")


def activation_bytes(
    spec: ModelSpec,
    engine: EngineMemory,
    *,
    num_batched_tokens: int,
    num_seqs: int,
    tensor_parallel: int = 1,
    expert_format: str = "bf16",
) -> float:
    """Return the peak of activations that the engine's profiling run finds on one rank.

    The larger of the forward pass, `T·2 B·(3·I/TP + 3·H)` (gate and up, their product, residual, normalized
    input and output), and the sampler, `S·V·bytes_per_logit + T·H·2 B`; plus the workspace of routed experts
    and a constant. The sampler's share does not shrink with TP: logits are gathered.
    """
    tokens, hidden = float(num_batched_tokens), spec.hidden_size
    width = _widest_mlp(spec) / tensor_parallel * (3 if spec.gated_mlp else 2)
    forward = tokens * 2.0 * (width + 3.0 * hidden)
    rows = min(num_seqs, num_batched_tokens)
    sampler = rows * spec.vocab_size * engine.bytes_per_logit + tokens * hidden * 2.0
    workspace = 0.0 if expert_format == "mxfp4" else expert_workspace_bytes(spec, tokens, tensor_parallel)
    return max(forward, sampler) + workspace + engine.base_activation_gib * GIB


def expert_workspace_bytes(spec: ModelSpec, num_tokens: float, tensor_parallel: int = 1) -> float:
    """Return the two buffers of a fused mixture of experts, kept between steps: `T·k·2 B·(max(2·I, H) + max(I, H))`."""
    if spec.moe is None:
        return 0.0
    width, hidden = spec.moe.moe_intermediate_size / tensor_parallel, spec.hidden_size
    copies = num_tokens * spec.moe.num_experts_per_tok * 2.0
    return copies * (max(2.0 * width, hidden) + max(width, hidden))


def runtime_bytes(engine: EngineMemory, link: LinkSpec, tensor_parallel: int = 1) -> float:
    """Return what is not the framework's own allocation: context, libraries, and communication buffers under TP.

    H100 logs: 0.25 GiB alone, 2.07 at TP2, 2.13 to 2.21 at TP4; half of the buffers are assumed where the
    link has no switch to reduce in (before NVLink 4).
    """
    if tensor_parallel == 1:
        return engine.runtime_gib * GIB
    switched = link.kind in ("nvlink4", "nvlink5", "nvlink6")
    return (engine.runtime_gib + (1.80 if switched else 0.90) + 0.02 * tensor_parallel) * GIB


def context_bytes(tensor_parallel: int = 1) -> float:
    """Return what is in use before the engine starts: total minus free. H100 logs: 0.51 GiB, 1.53 with other ranks."""
    return (0.51 if tensor_parallel == 1 else 1.53) * GIB


def graph_bytes(spec: ModelSpec, expert_format: str = "bf16") -> float:
    """Return what captured CUDA graphs take, outside the budget in vLLM 0.19.

    0.30 GiB + 0.019 a layer; MLA 0.75 and mxfp4 experts 1.1 more. H100 logs: 0.67 to 1.84 GiB, held within
    0.35.
    """
    extra = 0.75 * (spec.mla is not None) + 1.1 * (expert_format == "mxfp4" and spec.moe is not None)
    return (0.30 + 0.019 * spec.num_hidden_layers + extra) * GIB


def after_pool_bytes(
    spec: ModelSpec, *, num_batched_tokens: int, num_seqs: int, expert_format: str = "bf16", graphs: bool = True
) -> float:
    """Return what an engine still allocates once the KV cache has taken its budget.

    Graphs, one fp32 copy of the logits in the sampler's warm-up, and what mxfp4 experts' kernels allocate
    when they run (each routed copy of a token: input, gate and up, product, output). It must fit beside the
    budget.
    """
    logits = min(num_seqs, num_batched_tokens) * spec.vocab_size * 4.0
    unprofiled = 0.0
    if spec.moe is not None and expert_format == "mxfp4":
        copies = num_batched_tokens * spec.moe.num_experts_per_tok * 2.0
        unprofiled = copies * (2.0 * spec.hidden_size + 3.0 * spec.moe.moe_intermediate_size)
    return (graph_bytes(spec, expert_format) if graphs else 0.0) + logits + unprofiled


def _widest_mlp(spec: ModelSpec) -> int:
    dense = any(not spec.has_experts(layer) for layer in range(spec.num_hidden_layers))
    shared = spec.moe.shared_expert_intermediate_size if spec.moe else 0
    return max(spec.intermediate_size if dense else 0, shared)
