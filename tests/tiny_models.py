"""Tiny random models, one of each family, made with `transformers` and saved as safetensors folders.

They are two to four layers of a few dozen channels with everything a family is known for: grouped heads,
windows shorter than the test's prompt, soft-caps, biases, sinks, experts, each kind of rope. Weights are
larger than a real initialization's so that attention and routing are far from uniform. Each model is made
once per run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

VOCAB_SIZE = 128
PROMPT = tuple(int(t) for t in np.random.default_rng(7).integers(0, VOCAB_SIZE, 24))

_SMALL: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
_CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased-linear": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
        },
    ),
    "llama3": (
        "llama",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": ("mistral", {"sliding_window": 8, "head_dim": 24}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"head_dim": 24, "sliding_window": 8, "query_pre_attn_scalar": 20}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "phi3": ("phi3", {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}),
    "phi3-long": ("phi3", {"original_max_position_embeddings": 16, "max_position_embeddings": 256}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "qwen2-moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 80, "mlp_only_layers": [0]}),
    "qwen3-moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 24, "norm_topk_prob": True}),
    "gpt-oss": (
        "gpt_oss",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 4.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "glm4-moe": (
        "glm4_moe",
        {
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
}
FAMILIES: tuple[str, ...] = tuple(name for name in _CONFIGS if name != "glm4-moe")  # those the engine runs
LONGROPE_FAMILIES = ("phi3", "phi3-long")
_paths: dict[str, Path] = {}


def tiny_model(family: str, tmp_path: Path) -> Path:
    """Return the folder of the tiny model `family` (one of `FAMILIES`), made in `tmp_path` at first use."""
    path = _paths.get(family)
    if path is None or not path.exists():
        path = tmp_path / family
        _model(family).save_pretrained(path)
        _paths[family] = path
    return path


def num_parameters(family: str) -> int:
    """Return how many parameters `transformers` counts."""
    return int(_model(family).num_parameters())


def transformers_logits(family: str, token_ids: Sequence[int]) -> np.ndarray:
    """Return the logits of all tokens by `transformers`, eager attention in float32: [T, V]."""
    import torch

    with torch.no_grad():
        return _model(family)(torch.tensor([list(token_ids)])).logits[0].float().numpy()


@cache
def _model(family: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.set_num_threads(1)
    model_type, settings = _CONFIGS[family]
    if model_type == "phi3":
        trained = settings["original_max_position_embeddings"]
        settings = {**settings, "rope_parameters": {**_LONGROPE, "original_max_position_embeddings": trained}}
    config = CONFIG_MAPPING[model_type](**{**_SMALL, **settings})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, family)))
    tensors = {
        **dict(model.named_parameters()),
        **{n: b for n, b in model.named_buffers() if "correction" in n},
    }
    for tensor in tensors.values():
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() == 1:
            tensor.data += 0.2 * noise  # norms keep their 1 (or 0), biases and sinks become something
        else:
            tensor.data = noise * tensor.shape[-1] ** -0.5
    return model
