"""Reading config.json: family defaults, old and new spellings, refusals by name, hostile values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mansard.program.decoder import decoder
from mansard.specs.hf_config import from_hf, quantization_method, supported_by_engine
from mansard.specs.hf_families import FAMILIES
from mansard.specs.model import ModelSpec

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
NEEDS = {  # what transformers leaves None or derives
    "deepseek_v2": {
        "num_experts_per_tok": 2,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1407,
        "q_lora_rank": 1536,
    },
    "deepseek_v3": {"q_lora_rank": 1536},
}
WITHOUT_CLASS = {"kimi_k2"}
OWN_WORDS = {
    "falcon",
    "opt",
    "minimax",
    "deepseek_v2",
}  # other keys, or defaults that only newer classes have


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - WITHOUT_CLASS - OWN_WORDS))
def test_missing_keys_take_the_defaults_of_transformers(model_type: str) -> None:
    config = {"model_type": model_type, **SIZES, **NEEDS.get(model_type, {})}
    full = {**CONFIG_MAPPING[model_type](**config).to_dict(), **NEEDS.get(model_type, {})}
    assert from_hf(config) == from_hf(full)


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - WITHOUT_CLASS))
def test_every_family_builds_a_program(model_type: str) -> None:
    spec = from_hf({"model_type": model_type, **SIZES, **NEEDS.get(model_type, {})})
    program = decoder(spec)
    assert {layer for layer in program.layers if layer >= 0} == set(range(4))
    linear = sum(kind == "linear" for kind in spec.layer_types)
    assert program.num_cache_layers == 4 - linear


LLAMA_31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def test_old_and_new_rope_spellings_are_one() -> None:
    old = from_hf({**LLAMA_31, "rope_theta": 500_000.0, "rope_scaling": LLAMA3_ROPE})
    new = from_hf({**LLAMA_31, "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500_000.0}})
    assert old == new
    assert (old.rope.kind, old.rope.theta, old.rope.factor) == ("llama3", 500_000.0, 8.0)


GEMMA_3_4B = {  # google/gemma-3-4b-it's config.json names no heads: they are the family's
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}


def test_a_multimodal_config_is_read_for_its_language_model() -> None:
    spec = from_hf(GEMMA_3_4B)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.rope.kind, spec.rope.factor, spec.rope.theta) == ("linear", 8.0, 1e6)
    assert spec.rope_local is not None
    assert (spec.rope_local.kind, spec.rope_local.theta) == ("default", 10_000.0)
    assert [i for i in range(34) if spec.layer_type(i) == "full"] == [5, 11, 17, 23, 29]
    assert spec.tie_word_embeddings and spec.embedding_scale == 2560**0.5


def test_null_means_none_where_transformers_takes_it_so() -> None:
    """Mistral 7B v0.3 says `"sliding_window": null`: no window, not the family's default of 4,096."""
    assert from_hf({"model_type": "mistral", **SIZES}).sliding_window == 4096
    assert from_hf({"model_type": "mistral", **SIZES, "sliding_window": None}).sliding_window is None
    assert from_hf({"model_type": "gemma2", **SIZES, "attn_logit_softcapping": None}).attn_logit_softcapping is None
    assert from_hf({"model_type": "mistral", **SIZES, "rope_scaling": None, "rope_theta": None}).rope.theta == 1e4


def test_windows_of_qwen_are_used_only_when_asked() -> None:
    config = {"model_type": "qwen2", **SIZES, "sliding_window": 512, "max_window_layers": 2}
    assert from_hf(config).sliding_window is None
    spec = from_hf({**config, "use_sliding_window": True})
    assert (spec.layer_types, spec.sliding_window) == (("full", "full", "sliding", "sliding"), 512)


def test_qwen_moe_layers() -> None:
    config = {"model_type": "qwen3_moe", **SIZES, "num_hidden_layers": 6, "decoder_sparse_step": 2}
    spec = from_hf({**config, "mlp_only_layers": [3]})
    assert spec.moe is not None and spec.moe.layers == (1, 5)


def test_deepseek_v3() -> None:
    spec = from_hf({"model_type": "deepseek_v3", **SIZES, "num_hidden_layers": 61, "num_nextn_predict_layers": 1})
    assert spec.mla is not None and spec.moe is not None
    assert (spec.mla.kv_lora_rank, spec.mla.qk_rope_head_dim, spec.head_dim) == (512, 64, 192)
    assert (spec.moe.num_experts, spec.moe.topk_groups, spec.moe.layers) == (256, 4, tuple(range(3, 61)))
    assert spec.num_nextn_predict_layers == 1
    with pytest.raises(ValueError, match=r"deepseek_v3 cannot be run: latent attention \(MLA\)"):
        supported_by_engine(spec)


def test_llama4_layers_rotate_only_within_chunks() -> None:
    spec = from_hf({"model_type": "llama4", "text_config": {"model_type": "llama4_text", **SIZES}})
    assert spec.layer_types == ("chunked", "chunked", "chunked", "full")
    assert spec.rope.kind == "none" and spec.rope_local is not None and spec.rope_local.kind == "default"


@pytest.mark.parametrize(
    "model_type",
    ["deepseek_v2", "qwen3_next", "llama4_text", "minimax", "minimax_m2", "falcon", "opt", "glm4_moe"],
)
def test_what_is_only_priced_is_refused_at_load(model_type: str) -> None:
    spec = from_hf({"model_type": model_type, **SIZES, **NEEDS.get(model_type, {})})
    with pytest.raises(ValueError, match=f"{model_type} cannot be run"):
        supported_by_engine(spec)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral",
                                        "qwen2_moe", "qwen3_moe", "gpt_oss"])  # fmt: skip
def test_what_runs_is_not_refused(model_type: str) -> None:
    supported_by_engine(from_hf({"model_type": model_type, **SIZES}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, r"'mamba' is not supported; supported: llama, mistral"),
        ({"model_type": None}, r"\(missing\)"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported; supported: silu"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor has 0 numbers; 64 planes"),
        ({"rope_scaling": [1]}, r"'rope_scaling' is \[1\]; expected an object"),
        ({"num_hidden_layers": 1025}, "'num_hidden_layers' is 1025; expected 1 to 1024"),
        ({"num_hidden_layers": "32"}, "'num_hidden_layers' is '32'; expected an integer"),
        ({"num_hidden_layers": True}, "expected an integer"),
        ({"hidden_size": 0}, "'hidden_size' is 0"),
        ({"hidden_size": 10**30}, "'hidden_size' is 1000"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5 KV heads"),
        ({"head_dim": 127}, "head_dim is 127; rotary embedding needs an even one"),
        ({"num_attention_heads": 24}, "hidden_size 4096 is no multiple of 24 heads"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
        ({"tie_word_embeddings": "yes"}, "expected true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers; the model has 32"),
        ({"layer_types": ["mamba"] * 32}, "layer type 'mamba' is not supported"),
        ({"partial_rotary_factor": 0.01}, "the rotated width of a head is 1"),
        ({"text_config": 3}, "'text_config' is 3; expected an object"),
    ],
)
def test_refusals_name_the_value_and_the_limit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf({**LLAMA_31, **change})


def test_gpt_oss_with_another_activation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"swiglu_alpha is 1\.5; only 1\.702 is supported"):
        from_hf({"model_type": "gpt_oss", **SIZES, "swiglu_alpha": 1.5})


def test_quantization_method() -> None:
    assert quantization_method(LLAMA_31) is None
    assert quantization_method({**LLAMA_31, "quantization_config": {"quant_method": "mxfp4"}}) == "mxfp4"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-3, 3), st.text(max_size=4), st.none()), max_size=5),
    st.dictionaries(st.text(max_size=6), st.integers(), max_size=3),
)
KEYS = sorted({key for family in FAMILIES.values() for key in family.defaults} | set(SIZES) | {
    "layer_types", "rope_parameters", "rope_scaling", "text_config", "mlp_only_layers", "num_experts", "moe_layers",
    "n_routed_experts", "n_group", "moe_layer_freq", "quantization_config", "attn_type_list", "alibi", "model_type",
})  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=3))
def test_a_hostile_config_gives_a_spec_or_a_value_error(model_type: str, junk: dict[str, Any]) -> None:
    """Whatever stands in a config, reading it ends in a sane ModelSpec or in one clear error."""
    try:
        spec = from_hf({"model_type": model_type, **SIZES, **NEEDS.get(model_type, {}), **junk})
    except ValueError:
        return
    assert isinstance(spec, ModelSpec)
    assert 1 <= spec.num_hidden_layers <= 1024
    assert spec.num_attention_heads % spec.num_key_value_heads == 0
    assert len(spec.layer_types) in (0, spec.num_hidden_layers)
