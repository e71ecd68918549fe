"""Launch commands: a deployment said in each engine's own words, with the options that matter and no others.

Every option used here stands in `OPTIONS` with the document that defines it; a test holds that no command uses another.
What a flag cannot do (a checkpoint that must be quantized beforehand) is said as a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.cost.deployment import Deployment
from mansard.cost.engine_support import ENGINES, engine_problem
from mansard.specs.precision import number_format

# Options by engine, and where each is documented (read December 2026).
SOURCES: Mapping[str, str] = {
    "vllm": "docs.vllm.ai, Engine Arguments (vllm serve)",
    "sglang": "docs.sglang.io, Server Arguments (sglang.launch_server)",
    "trtllm": "nvidia.github.io/TensorRT-LLM, trtllm-serve, and LLM API reference (KvCacheConfig, enable_attention_dp)",
    "llama.cpp": "ggml-org/llama.cpp, tools/server/README.md (manual page llama-server(1))",
    "mansard": "mansard serve --help",
}
OPTIONS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel"),
            *("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"),
            *("--kv-cache-dtype", "--quantization", "--dtype"),
        }
    ),
    "sglang": frozenset(
        {
            *("--model-path", "--tp-size", "--pp-size", "--dp-size", "--ep-size", "--enable-dp-attention"),
            *("--context-length", "--max-running-requests", "--chunked-prefill-size", "--mem-fraction-static"),
            *("--kv-cache-dtype", "--quantization", "--dtype"),
        }
    ),
    "trtllm": frozenset(
        {
            *("--tp_size", "--pp_size", "--ep_size", "--max_seq_len", "--max_batch_size", "--max_num_tokens"),
            *("--kv_cache_free_gpu_memory_fraction", "--config"),
        }
    ),
    "llama.cpp": frozenset(
        {
            *("--model", "--ctx-size", "--parallel", "--n-gpu-layers", "--split-mode", "--batch-size", "--flash-attn"),
            *("--cache-type-k", "--cache-type-v"),
        }
    ),
    "mansard": frozenset({"--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--kv-dtype"}),
}
_MADE_AT_LOAD = frozenset({"fp8", "int8"})  # what an engine can quantize a 16-bit checkpoint to by itself


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How to start one engine: its arguments, and what must be done beside them."""

    engine: str
    label: str
    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the command as one line for a shell."""
        return shlex.join(self.arguments)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options used."""
        return tuple(a for a in self.arguments if a.startswith("--"))


def launch_commands(
    deployment: Deployment, model: str, users: int, cache_tokens: int, published: str = "bf16"
) -> tuple[LaunchCommand, ...]:
    """Return the command of every engine that can run the deployment, the planned engine's first.

    `users` is the number of requests at once of one data-parallel rank, `cache_tokens` what its cache holds,
    `published` the format of the model's own checkpoint.
    """
    makers = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llama.cpp": _llama_cpp, "mansard": _mansard}
    order = sorted(makers, key=lambda name: name != deployment.engine)
    found = []
    for name in order:
        if engine_problem(name, deployment.hardware, deployment.layout) or _unknown_format(name, deployment):
            continue
        arguments = makers[name](deployment, model, users, cache_tokens, published)
        notes = _notes(name, deployment, published)
        found.append(LaunchCommand(name, ENGINES[name].label, tuple(arguments), notes))
    return tuple(found)


def _unknown_format(engine: str, deployment: Deployment) -> bool:
    """Say whether an engine does not read the weights' kind of file, or cannot keep the cache so."""
    block_file = number_format(deployment.weights).name.startswith(("Q", "IQ"))
    if engine in ("llama.cpp", "mansard"):
        return deployment.weights in ("nvfp4", "fp8") or deployment.kv == "fp8"
    return block_file or (deployment.kv not in ("bf16", "fp16", "fp8"))


def _notes(engine: str, deployment: Deployment, published: str) -> tuple[str, ...]:
    notes: list[str] = []
    weights = deployment.weights
    if weights not in (published, "bf16", "fp16") and (engine == "trtllm" or weights not in _MADE_AT_LOAD):
        kind = "GGUF file" if engine == "llama.cpp" else "checkpoint"
        notes.append(f"needs a {kind} quantized to {weights}")
    if engine == "trtllm" and _trtllm_extra(deployment):
        notes.append("extra.yaml: " + "; ".join(_trtllm_extra(deployment)))
    if deployment.num_replicas > 1:
        notes.append(f"start {deployment.num_replicas} of these behind a load balancer")
    if deployment.layout.num_ranks > deployment.hardware.link.max_devices and deployment.layout.num_ranks > 8:
        notes.append("spans hosts: start it through the engine's multi-node launcher")
    return tuple(notes)


def _given(**options: object) -> list[str]:
    """Return `--name value` pairs of the options that have a value; True alone stands for a switch."""
    found: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        found += [name] if value is True else [name, str(value)]
    return found


def _above_one(value: int) -> int | None:
    return value if value > 1 else None


def _quantization(deployment: Deployment, published: str) -> str | None:
    """Return what an engine quantizes to while it loads a 16-bit checkpoint, or None."""
    wanted = deployment.weights
    return wanted if wanted != published and wanted in _MADE_AT_LOAD and published in ("bf16", "fp16") else None


def _vllm(d: Deployment, model: str, users: int, cache_tokens: int, published: str) -> list[str]:
    layout = d.layout
    options = {
        "--tensor-parallel-size": _above_one(layout.tensor_parallel),
        "--pipeline-parallel-size": _above_one(layout.pipeline_parallel),
        "--data-parallel-size": _above_one(layout.data_parallel),
        "--enable-expert-parallel": layout.expert_parallel > 1,
        "--max-model-len": d.max_model_len,
        "--max-num-seqs": users,
        "--max-num-batched-tokens": d.num_batched_tokens,
        "--gpu-memory-utilization": f"{d.fraction:g}",
        "--kv-cache-dtype": "fp8" if d.kv == "fp8" else None,
        "--quantization": "fp8" if _quantization(d, published) == "fp8" else None,
        "--dtype": "float16" if "fp16" in (d.weights, d.kv) else None,
    }
    return ["vllm", "serve", model, *_given(**options)]


def _sglang(d: Deployment, model: str, users: int, cache_tokens: int, published: str) -> list[str]:
    layout = d.layout
    options = {
        "--model-path": model,
        "--tp-size": _above_one(layout.tensor_parallel * layout.data_parallel),
        "--pp-size": _above_one(layout.pipeline_parallel),
        "--dp-size": _above_one(layout.data_parallel),
        "--enable-dp-attention": layout.data_parallel > 1,
        "--ep-size": _above_one(layout.expert_parallel),
        "--context-length": d.max_model_len,
        "--max-running-requests": users * layout.data_parallel,
        "--chunked-prefill-size": d.num_batched_tokens,
        "--mem-fraction-static": f"{min(d.fraction, 0.88):g}",
        "--kv-cache-dtype": "fp8_e4m3" if d.kv == "fp8" else None,
        "--quantization": {"fp8": "fp8", "int8": "w8a8_int8"}.get(_quantization(d, published) or ""),
        "--dtype": "float16" if "fp16" in (d.weights, d.kv) else None,
    }
    return ["python", "-m", "sglang.launch_server", *_given(**options)]


def _trtllm_extra(d: Deployment) -> list[str]:
    extra = ["kv_cache_config: {dtype: fp8}"] if d.kv == "fp8" else []
    return extra + (["enable_attention_dp: true"] if d.layout.data_parallel > 1 else [])


def _trtllm(d: Deployment, model: str, users: int, cache_tokens: int, published: str) -> list[str]:
    layout = d.layout
    options = {
        "--tp_size": _above_one(layout.tensor_parallel * layout.data_parallel),
        "--pp_size": _above_one(layout.pipeline_parallel),
        "--ep_size": _above_one(layout.expert_parallel),
        "--max_seq_len": d.max_model_len,
        "--max_batch_size": users,
        "--max_num_tokens": d.num_batched_tokens,
        "--kv_cache_free_gpu_memory_fraction": f"{d.fraction:g}" if d.engine == "trtllm" else None,
        "--config": "extra.yaml" if _trtllm_extra(d) else None,
    }
    return ["trtllm-serve", model, *_given(**options)]


def _llama_cpp(d: Deployment, model: str, users: int, cache_tokens: int, published: str) -> list[str]:
    name = model.rsplit("/", 1)[-1]
    file = model if model.endswith(".gguf") else f"{name}-{_file_kind(d.weights)}.gguf"
    slots = max(1, min(users, 64, cache_tokens // d.max_model_len))
    cache = {"int8": "q8_0", "Q8_0": "q8_0", "int4": "q4_0"}.get(d.kv)
    options = {
        "--model": file,
        "--ctx-size": slots * d.max_model_len,
        "--parallel": slots,
        "--n-gpu-layers": None if d.hardware.kind == "cpu" else 999,
        "--split-mode": "layer" if d.layout.pipeline_parallel > 1 else None,
        "--batch-size": min(d.num_batched_tokens, 2048),
        "--flash-attn": "on",
        "--cache-type-k": cache,
        "--cache-type-v": cache,
    }
    return ["llama-server", *_given(**options)]


def _file_kind(weights: str) -> str:
    """Return the llama.cpp file type nearest to a format."""
    kinds = {
        "bf16": "BF16",
        "fp16": "F16",
        "fp32": "F32",
        "int8": "Q8_0",
        "int4": "Q4_0",
        "mxfp4": "MXFP4",
        "nf4": "Q4_0",
    }
    kind = kinds.get(weights, weights if weights.startswith(("Q", "IQ")) else "Q8_0")
    return f"{kind}_M" if kind.endswith("_K") and kind != "Q6_K" else kind


def _mansard(d: Deployment, model: str, users: int, cache_tokens: int, published: str) -> list[str]:
    options = {
        "--max-model-len": d.max_model_len,
        "--max-num-seqs": users,
        "--max-num-batched-tokens": d.num_batched_tokens,
        "--kv-dtype": d.kv if d.kv in ("int8", "int4") else None,
    }
    return ["mansard", "serve", model, *_given(**options)]
