"""Reading GGUF metadata: equal to the config.json of the same model, what is implied, hostile values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_model

from mansard.specs.gguf_config import from_gguf
from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec, RopeSpec
from mansard.specs.rope import inverse_frequencies

ARCHITECTURES = {
    "llama": "llama",
    "llama-yarn": "llama",
    "llama-biased-linear": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "phi3": "phi3",
    "phi3-long": "phi3",
    "mixtral": "llama",
    "qwen3-moe": "qwen3moe",
    "gpt-oss": "gpt-oss",
}


def as_gguf(spec: ModelSpec, arch: str) -> tuple[dict[str, Any], set[str], dict[str, tuple[float, ...]]]:
    """Return metadata, tensor names and rope factors as a converter writes them for `spec`."""
    keys: dict[str, Any] = {
        "block_count": spec.num_hidden_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_attention_heads,
        "attention.head_count_kv": spec.num_key_value_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.rms_norm_eps,
        "rope.freq_base": spec.rope.theta,
        "rope.dimension_count": spec.rope.rotary_dim or spec.head_dim,
        "attention.sliding_window": spec.sliding_window,
        "attn_logit_softcapping": spec.attn_logit_softcapping,
        "final_logit_softcapping": spec.final_logit_softcapping,
    }
    if spec.moe is not None:
        keys["expert_count"] = spec.moe.num_experts
        keys["expert_used_count"] = spec.moe.num_experts_per_tok
        keys["expert_feed_forward_length"] = spec.moe.moe_intermediate_size
    if spec.rope.kind in ("linear", "yarn", "longrope"):
        keys["rope.scaling.type"] = spec.rope.kind
        keys["rope.scaling.factor"] = spec.rope.factor
        keys["rope.scaling.original_context_length"] = spec.rope.original_max_position_embeddings
    metadata = {f"{arch}.{key}": value for key, value in keys.items() if value is not None}
    metadata |= {"general.architecture": arch, "tokenizer.ggml.tokens": ["t"] * spec.vocab_size}
    shown = {
        "output.weight": not spec.tie_word_embeddings,
        "blk.0.attn_q.bias": spec.qkv_bias,
        "blk.0.attn_output.bias": spec.attention_output_bias,
        "blk.0.ffn_down.bias": spec.mlp_bias,
        "blk.0.attn_q_norm.weight": spec.qk_norm,
        "blk.0.attn_sinks.weight": spec.attention_sinks,
        "blk.0.attn_qkv.weight": spec.fused_qkv,
        "blk.0.ffn_gate_inp.bias": spec.moe is not None and spec.moe.router_bias,
        "blk.0.ffn_down_exps.bias": spec.moe is not None and spec.moe.expert_bias,
        "rope_factors_short.weight": spec.rope.kind == "longrope",
        "rope_factors_long.weight": spec.rope.kind == "longrope",
    }
    factors = {
        "rope_factors_short.weight": spec.rope.short_factor,
        "rope_factors_long.weight": spec.rope.long_factor,
    }
    names = {"token_embd.weight", *(name for name, present in shown.items() if present)}
    return metadata, names, factors if spec.rope.kind == "longrope" else {}


def comparable(spec: ModelSpec) -> ModelSpec:
    """Return `spec` without what the two formats say differently: Gemma's norms, unused rope fields."""
    rope = spec.rope
    if rope.kind in ("default", "linear"):
        rope = replace(rope, original_max_position_embeddings=None)
    scale = spec.query_scale if spec.query_scale is not None else spec.head_dim**-0.5
    return replace(spec, norm_unit_offset=False, rope=rope, query_scale=scale)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_gguf_and_config_json_give_one_spec(family: str, tmp_path: Path) -> None:
    spec = from_hf(json.loads((tiny_model(family, tmp_path) / "config.json").read_text()))
    if spec.model_type == "gemma2":  # GGUF does not say the query scale; it is the head's, as in the 2B and 9B
        spec = replace(spec, query_scale=None)
    metadata, names, factors = as_gguf(spec, ARCHITECTURES[family])
    got = from_gguf(metadata, names, rope_factors=factors)
    assert comparable(got) == comparable(spec)


GEMMA_270M = {  # as the file of gemma-3-270m says; neither pattern nor local base is in it
    "general.architecture": "gemma3",
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 640,
    "gemma3.block_count": 18,
    "gemma3.feed_forward_length": 2048,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.rope.freq_base": 1_000_000.0,
    "gemma3.attention.sliding_window": 512,
    "tokenizer.ggml.tokens": ["t"] * 1000,
}
GEMMA_TENSORS = {"token_embd.weight", "blk.0.attn_q_norm.weight"}


def test_gemma3_implies_pattern_base_and_scales() -> None:
    spec = from_gguf(GEMMA_270M, GEMMA_TENSORS)
    assert [i for i in range(18) if spec.layer_type(i) == "full"] == [5, 11, 17]
    assert spec.rope.theta == 1e6 and spec.rope_local == RopeSpec(theta=10_000.0)
    assert spec.query_scale == 256**-0.5 and spec.embedding_scale == 640**0.5
    assert spec.sandwich_norms and not spec.norm_unit_offset and spec.tie_word_embeddings and spec.qk_norm


def test_gemma3_27b_scales_by_the_residual_width_a_head() -> None:
    change = {"gemma3.block_count": 62, "gemma3.embedding_length": 5376, "gemma3.attention.head_count": 32}
    assert from_gguf({**GEMMA_270M, **change}, GEMMA_TENSORS).query_scale == (5376 / 32) ** -0.5


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 131072,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 128,
}


def test_llama3_frequencies_come_from_the_file() -> None:
    names = {"rope_freqs.weight", "output.weight"}
    with pytest.raises(ValueError, match=r"rope_freqs\.weight, whose values the architecture depends on"):
        from_gguf(LLAMA, names)
    divisors = (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)
    spec = from_gguf(LLAMA, names, rope_factors={"rope_freqs.weight": divisors})
    plain, _ = inverse_frequencies(RopeSpec(), 16, 131072)
    got, factor = inverse_frequencies(spec.rope, 16, 131072)
    assert got == pytest.approx([p / d for p, d in zip(plain, divisors, strict=True)]) and factor == 1.0
    with pytest.raises(ValueError, match="2 numbers; 8 rotated planes"):
        from_gguf(LLAMA, names, rope_factors={"rope_freqs.weight": (1.0, 1.0)})


def test_deepseek2_has_latent_attention() -> None:
    keys = {
        "block_count": 4,
        "context_length": 4096,
        "embedding_length": 128,
        "feed_forward_length": 256,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
        "attention.q_lora_rank": 64,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 64,
        "leading_dense_block_count": 1,
        "expert_count": 16,
        "expert_used_count": 4,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "vocab_size": 100,
    }
    metadata = {"general.architecture": "deepseek2", **{f"deepseek2.{k}": v for k, v in keys.items()}}
    spec = from_gguf(metadata, {"output.weight", "blk.1.exp_probs_b.bias"})
    assert spec.mla is not None and spec.moe is not None
    assert (spec.mla.qk_nope_head_dim, spec.mla.v_head_dim, spec.mla.q_lora_rank) == (128, 128, 64)
    assert spec.moe.layers == (1, 2, 3) and spec.moe.shared_expert_intermediate_size == 64
    assert spec.moe.scoring == "sigmoid" and spec.moe.score_correction_bias and spec.moe.norm_topk_prob


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "rwkv"}, "GGUF architecture 'rwkv' is not supported; supported: llama"),
        ({"general.architecture": 3}, "'general.architecture' is 3; expected a string"),
        ({"llama.block_count": 10**9}, "'block_count' is 1000000000; expected 1 to 1024"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"llama.attention.head_count": [4, 8]}, "'attention.head_count' differs between layers"),
        ({"llama.attention.value_length": 32}, r"heads of 16 \(values: 32\) are not supported"),
        ({"llama.rope.dimension_count": 18}, "rope.dimension_count is 18"),
        ({"llama.rope.scaling.type": "ntk"}, "rope scaling 'ntk' is not supported"),
        ({"llama.embedding_length": 66}, "embedding_length 66 is no multiple of 4 heads"),
        ({"llama.context_length": None}, "GGUF metadata llama lacks 'context_length'"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "'expert_used_count' is 5; expected 1 to 4"),
    ],
)
def test_refusals_name_the_value_and_the_limit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gguf({**LLAMA, **change}, {"output.weight"})


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-3, 3), max_size=5),
)
KEYS = sorted({
    *(key.removeprefix("llama.") for key in LLAMA), "attention.key_length", "attention.value_length", "expert_count",
    "attention.kv_lora_rank", "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base",
    "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "expert_used_count", "expert_gating_func",
    "leading_dense_block_count", "nextn_predict_layers", "expert_shared_count", "expert_group_count",
})  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=3), st.booleans())
def test_hostile_metadata_gives_a_spec_or_a_value_error(junk: dict[str, Any], factors: bool) -> None:
    """Whatever stands in a file's metadata, reading it ends in a sane ModelSpec or in one clear error."""
    metadata = {**LLAMA, **{key if "general" in key else f"llama.{key}": value for key, value in junk.items()}}
    try:
        spec = from_gguf(metadata, {"rope_freqs.weight"} if factors else {"output.weight"})
    except ValueError:
        return
    assert isinstance(spec, ModelSpec)
    assert 1 <= spec.num_hidden_layers <= 1024
    assert spec.num_attention_heads % spec.num_key_value_heads == 0
