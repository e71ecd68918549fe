"""Parameter counts against `transformers` and published totals; cache bytes by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import FAMILIES, tiny_model
from tiny_models import num_parameters as counted_parameters
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import (
    kv_bytes,
    kv_bytes_per_token,
    layer_kv_bytes_per_token,
    linear_state_bytes,
    num_active_parameters,
    num_parameters,
    parameter_counts,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_have_the_counted_parameters(family: str, tmp_path: Path) -> None:
    spec = from_hf(json.loads((tiny_model(family, tmp_path) / "config.json").read_text()))
    assert num_parameters(spec) == counted_parameters(family)


SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": None,
}
PRICED = {
    "deepseek_v3": {"n_routed_experts": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "first_k_dense_replace": 1},
    "deepseek_v2": {
        "n_routed_experts": 8,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "first_k_dense_replace": 2,
    },
    "qwen3_next": {"num_experts": 8, "head_dim": 16, "num_key_value_heads": 2, "linear_num_value_heads": 8},
    "qwen3_5_text": {"head_dim": 16, "num_key_value_heads": 2, "linear_num_value_heads": 8},
    "glm4_moe": {"n_routed_experts": 8, "head_dim": 16, "num_key_value_heads": 2, "use_qk_norm": True},
    "llama4_text": {
        "num_local_experts": 4,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "intermediate_size_mlp": 96,
    },
}


@pytest.mark.parametrize("model_type", PRICED)
def test_priced_families_have_the_counted_parameters(model_type: str) -> None:
    """Buffers that a checkpoint also holds (DeepSeek's correction bias) count as parameters here."""
    import torch

    config = CONFIG_MAPPING[model_type](**{**SMALL, **PRICED[model_type]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    corrections = sum(b.numel() for name, b in model.named_buffers() if "correction" in name)
    assert num_parameters(from_hf(config.to_dict())) == model.num_parameters() + corrections


LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def test_llama_70b() -> None:
    spec = from_hf(LLAMA_70B)
    assert num_parameters(spec) == 70_553_706_496  # the checkpoint's own index says 141,107,412,992 bytes of bf16
    assert kv_bytes_per_token(spec) == 2 * 80 * 8 * 128 * 2 == 327_680
    assert kv_bytes(spec, 1000, "bf16") == 327_680_000


def test_int8_cache_counts_its_scales() -> None:
    spec = from_hf(LLAMA_70B)
    assert layer_kv_bytes_per_token(spec, 0, "int8") == 2 * 8 * (128 + 4)


def test_active_parameters_leave_out_idle_experts() -> None:
    spec = from_hf(
        {**LLAMA_70B, "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    )
    assert num_parameters(spec) == 46_702_792_704
    assert num_active_parameters(spec) == 12_879_925_248
    assert parameter_counts(spec).experts == 32 * 8 * 3 * 4096 * 14336


def test_windows_bound_the_cache() -> None:
    spec = replace(from_hf(LLAMA_70B), num_hidden_layers=2, layer_types=("sliding", "full"), sliding_window=100)
    token = layer_kv_bytes_per_token(spec, 0)
    assert kv_bytes(spec, 1000) == (100 + 1000) * token
    assert kv_bytes(spec, 1000, keep_all=True) == 2000 * token


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    spec = from_hf({**SMALL, "model_type": "deepseek_v3", "num_hidden_layers": 61})
    assert kv_bytes_per_token(spec) == 61 * (512 + 64) * 2  # DeepSeek-V3: 70 KB a token


def test_linear_layers_keep_a_state_instead_of_a_cache() -> None:
    spec: ModelSpec = from_hf({**SMALL, "model_type": "qwen3_next", "num_experts": 8, "num_key_value_heads": 2})
    assert kv_bytes_per_token(spec) == 2 * 2 * 256 * 2  # one full layer of four
    assert linear_state_bytes(spec) == 3 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2)
    assert linear_state_bytes(from_hf(LLAMA_70B)) == 0
