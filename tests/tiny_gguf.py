"""The tiny models as GGUF files: names from the `gguf` package's own tables, metadata from Hugging Face's config.

What llama.cpp's converter does to the weights is done here too: rows of q and k interleaved for `llama` files, the 1
of (1 + weight) added to Gemma's norms, Llama 3's rope scaling as a tensor of divisors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mansard.loading.ggml_encode import quantize
from mansard.loading.gguf_writer import write_gguf
from mansard.loading.stored import StoredTensor
from mansard.loading.weights import Weights

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "llama-biased-linear": "llama",
    "llama3": "llama",
    "llama-yarn": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2-sliding": "qwen2",
    "qwen2-moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3-moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "phi3-long": "phi3",
    "gpt-oss": "gpt-oss",
}
_DENSE_MLP = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}


def write_tiny_gguf(family: str, folder: Path, target: Path, fmt: str = "fp32") -> Path:
    """Write the safetensors model in `folder` as a GGUF whose matrices are stored as `fmt` where rows fill blocks."""
    config = json.loads((folder / "config.json").read_text())
    tensors = [*_weights(family, folder, config, fmt), *_rope_tensors(config)]
    return write_gguf(target, _metadata(ARCHITECTURES[family], config), tensors)


def _weights(family: str, folder: Path, config: Mapping[str, Any], fmt: str) -> Iterator[StoredTensor]:
    weights = Weights.open(folder)
    arch = ARCHITECTURES[family]
    for name in weights.names():
        values = weights.float32(name)
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = _interleaved(values, heads)
        if arch.startswith("gemma") and "norm" in name:
            values = values + np.float32(1)
        fits = values.ndim > 1 and values.shape[-1] % 32 == 0
        yield quantize(values, fmt if fits else "fp32", _gguf_name(name, arch))


def _interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Put row j · D/2 + i of each head at 2 i + j, as llama.cpp's rotation wants it."""
    heads = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)


def _gguf_name(name: str, arch: str) -> str:
    import gguf

    known = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}
    found = gguf.get_tensor_name_map(known[arch], 8).get_name(name, (".weight", ".bias"))
    if found is None:  # a dense layer of an architecture that has none in llama.cpp
        _, _, layer, _, part, kind = name.split(".")
        return f"blk.{layer}.{_DENSE_MLP[part]}.{kind}"
    return found if found.endswith((".weight", ".bias")) else f"{found}.weight"


def _metadata(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "context_length": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        **_rope_keys(rope.get("full_attention", rope), head_dim),
        **_window_keys(config),
        **_expert_keys(config),
    }
    own = {f"{arch}.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": arch, **own}


def _rope_keys(rope: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    kind = rope["rope_type"]
    return {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "rope.scaling.type": kind if kind in ("linear", "yarn", "longrope") else None,
        "rope.scaling.factor": rope.get("factor") if kind in ("linear", "yarn") else None,
        "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
    }


def _window_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    types = config.get("layer_types")
    window = config.get("sliding_window")
    if not window:
        return {}
    pattern = [t == "sliding_attention" for t in types] if types else None
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}


def _expert_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    count = config.get("num_experts") or config.get("num_local_experts")
    if count is None:
        return {}
    return {
        "expert_count": count,
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size") or config["intermediate_size"],
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "leading_dense_block_count": len(config.get("mlp_only_layers") or ()) or None,
    }


def _rope_tensors(config: Mapping[str, Any]) -> list[StoredTensor]:
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        return [
            quantize(np.asarray(rope[f"{kind}_factor"], np.float32), "fp32", f"rope_factors_{kind}.weight")
            for kind in ("long", "short")
        ]
    if rope.get("rope_type") != "llama3":
        return []
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "dtype", "model_type")})
    scaled = ROPE_INIT_FUNCTIONS["llama3"](settings, "cpu")[0].numpy()
    plain = float(rope["rope_theta"]) ** (-np.arange(len(scaled), dtype=np.float64) / len(scaled))
    return [quantize((plain / scaled).astype(np.float32), "fp32", "rope_freqs.weight")]
