"""The model families by Hugging Face's `model_type`: what a config leaves unsaid and what code fixes.

A config.json omits what equals its family's default, so the defaults here are those of the configuration
classes in `transformers`. What a family's modeling code fixes (a norm, a bias, a rule for layer types) is
data here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

LayerRule = Literal["full", "all_sliding", "late_sliding", "even_sliding", "sliding_pattern", "linear", "chunked"]
MoeStyle = Literal["mixtral", "qwen", "gpt_oss", "deepseek", "llama4"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family: defaults by config key, `ModelSpec` fields fixed by its code, and its spelling."""

    defaults: Mapping[str, object]
    fixed: Mapping[str, object] = field(default_factory=dict)
    layer_rule: LayerRule = "full"
    moe: MoeStyle | None = None
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    score_correction_bias: bool = False
    shared_expert_gate: bool = False
    bias_key: str = "attention_bias"  # the config's flag for biases of q, k and v
    output_bias: bool = True  # the flag covers o_proj too
    mlp_bias_key: str = "mlp_bias"
    activation_key: str = "hidden_act"
    mla: bool = False
    runnable: bool = True  # False: can be priced, cannot be run


def _defaults(*base: Mapping[str, object], **values: object) -> dict[str, object]:
    merged: dict[str, object] = {}
    for part in (*base, values):
        merged.update(part)
    return merged


_COMMON = _defaults(hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10_000.0, tie_word_embeddings=False)
_LLAMA = _defaults(_COMMON, vocab_size=32_000, max_position_embeddings=2048)
_QWEN = _defaults(_COMMON, vocab_size=151_936, max_position_embeddings=32_768, max_window_layers=28)
_QWEN_MOE = _defaults(_QWEN, decoder_sparse_step=1)
_QWEN_HYBRID = _defaults(
    _QWEN_MOE,
    head_dim=256,
    partial_rotary_factor=0.25,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    full_attention_interval=4,
    norm_topk_prob=True,
)
_QWEN_HYBRID_MOE = _defaults(
    _QWEN_HYBRID, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts_per_tok=8
)
_GEMMA = _defaults(
    _COMMON,
    hidden_activation="gelu_pytorch_tanh",
    tie_word_embeddings=True,
    query_pre_attn_scalar=256,
    sliding_window=4096,
    head_dim=256,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_hidden_layers=26,
    hidden_size=2304,
    intermediate_size=9216,
)
_MIXTRAL = _defaults(
    _COMMON,
    vocab_size=32_000,
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=2,
)
_DEEPSEEK = _defaults(
    _LLAMA,
    vocab_size=102_400,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    first_k_dense_replace=0,
    n_shared_experts=0,
)
_DEEPSEEK_V3 = _defaults(
    _DEEPSEEK,
    vocab_size=129_280,
    max_position_embeddings=4096,
    n_routed_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_shared_experts=1,
    first_k_dense_replace=3,
    routed_scaling_factor=2.5,
    n_group=8,
    topk_group=4,
    norm_topk_prob=True,
    num_nextn_predict_layers=1,
)
_GEMMA_FIXED = _defaults(norm_unit_offset=True, sandwich_norms=True)
_PLAIN_MLP = _defaults(gated_mlp=False)

_LLAMA_FAMILY = Family(_LLAMA)
_QWEN3_NEXT = Family(
    _defaults(_QWEN_HYBRID_MOE, num_experts=512, num_experts_per_tok=10),
    _defaults(qk_norm=True, norm_unit_offset=True, attention_output_gate=True),
    "linear",
    moe="qwen",
    shared_expert_gate=True,
    runnable=False,
)
_DEEPSEEK_V3_FAMILY = Family(
    _DEEPSEEK_V3, moe="deepseek", scoring="sigmoid", score_correction_bias=True, mla=True, runnable=False
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA_FAMILY,
    "mistral": Family(
        _defaults(_LLAMA, max_position_embeddings=131_072, sliding_window=4096, num_key_value_heads=8),
        layer_rule="all_sliding",
    ),
    "qwen2": Family(_QWEN, _defaults(qkv_bias=True), "late_sliding", output_bias=False),
    "qwen3": Family(_defaults(_QWEN, head_dim=128), _defaults(qk_norm=True), "late_sliding"),
    "gemma2": Family(
        _defaults(
            _GEMMA,
            vocab_size=256_000,
            max_position_embeddings=8192,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
        ),
        _GEMMA_FIXED,
        "even_sliding",
        activation_key="hidden_activation",
    ),
    "gemma3_text": Family(
        _defaults(
            _GEMMA,
            vocab_size=262_208,
            max_position_embeddings=131_072,
            rope_theta=1e6,
            rope_local_base_freq=10_000.0,
            sliding_window_pattern=6,
        ),
        _defaults(_GEMMA_FIXED, qk_norm=True),
        "sliding_pattern",
        activation_key="hidden_activation",
    ),
    "phi3": Family(
        _defaults(_LLAMA, vocab_size=32_064, max_position_embeddings=4096, rms_norm_eps=1e-5),
        _defaults(fused_qkv=True, fused_gate_up=True),
        "all_sliding",
    ),
    "mixtral": Family(_MIXTRAL, layer_rule="all_sliding", moe="mixtral"),
    "qwen2_moe": Family(
        _defaults(
            _QWEN_MOE,
            qkv_bias=True,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
            num_experts_per_tok=4,
        ),
        layer_rule="late_sliding",
        moe="qwen",
        shared_expert_gate=True,
        bias_key="qkv_bias",
        output_bias=False,
    ),
    "qwen3_moe": Family(
        _defaults(
            _QWEN_MOE,
            num_key_value_heads=4,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
        ),
        _defaults(qk_norm=True),
        "all_sliding",
        moe="qwen",
    ),
    "gpt_oss": Family(
        _defaults(
            _COMMON,
            vocab_size=201_088,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=150_000.0,
            head_dim=64,
            num_key_value_heads=8,
            sliding_window=128,
            num_local_experts=128,
            num_experts_per_tok=4,
            attention_bias=True,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            rope_scaling=_defaults(
                rope_type="yarn",
                factor=32.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=4096,
            ),
        ),
        _defaults(attention_sinks=True, hidden_act="swiglu_oai"),
        "even_sliding",
        moe="gpt_oss",
    ),
    "deepseek_v2": Family(_DEEPSEEK, moe="deepseek", mla=True, runnable=False),
    "deepseek_v3": _DEEPSEEK_V3_FAMILY,
    "kimi_k2": _DEEPSEEK_V3_FAMILY,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": replace(_QWEN3_NEXT, defaults=_defaults(_QWEN_HYBRID, vocab_size=248_320)),
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, defaults=_defaults(_QWEN_HYBRID_MOE, vocab_size=248_320, num_experts=256)),
    "glm4_moe": Family(
        _defaults(
            _LLAMA,
            vocab_size=151_552,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            partial_rotary_factor=0.5,
            num_key_value_heads=8,
            first_k_dense_replace=1,
            n_shared_experts=1,
            n_routed_experts=128,
            num_nextn_predict_layers=1,
            num_experts_per_tok=8,
            moe_intermediate_size=1408,
            norm_topk_prob=True,
        ),
        moe="deepseek",
        scoring="sigmoid",
        score_correction_bias=True,
        output_bias=False,
        runnable=False,
    ),
    "minimax": Family(
        _defaults(_MIXTRAL, linear_conv_kernel_dim=1), layer_rule="linear", moe="mixtral", runnable=False
    ),
    "minimax_m2": Family(
        _defaults(
            _MIXTRAL,
            vocab_size=200_064,
            max_position_embeddings=196_608,
            rms_norm_eps=1e-6,
            rope_theta=5e6,
            head_dim=128,
            num_local_experts=256,
            num_experts_per_tok=8,
        ),
        _defaults(qk_norm=True),
        moe="mixtral",
        scoring="sigmoid",
        score_correction_bias=True,
        runnable=False,
    ),
    "falcon": Family(
        _defaults(
            _COMMON,
            vocab_size=65_024,
            hidden_size=4544,
            num_hidden_layers=32,
            num_attention_heads=71,
            max_position_embeddings=2048,
            activation="gelu",
            tie_word_embeddings=True,
            multi_query=True,
        ),
        _PLAIN_MLP,
        activation_key="activation",
        bias_key="bias",
        mlp_bias_key="bias",
        runnable=False,
    ),
    "opt": Family(
        _defaults(
            _COMMON,
            vocab_size=50_272,
            max_position_embeddings=2048,
            activation_function="relu",
            enable_bias=True,
            tie_word_embeddings=True,
        ),
        _PLAIN_MLP,
        activation_key="activation_function",
        bias_key="enable_bias",
        mlp_bias_key="enable_bias",
        runnable=False,
    ),
    "llama4_text": Family(
        _defaults(
            _LLAMA,
            vocab_size=202_048,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=500_000.0,
            head_dim=128,
            num_key_value_heads=8,
            intermediate_size_mlp=16_384,
            num_local_experts=16,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            attention_chunk_size=8192,
        ),
        layer_rule="chunked",
        moe="llama4",
        scoring="sigmoid",
        runnable=False,
    ),
}

# A multimodal or renamed config whose language model is one of the families.
ALIASES: Mapping[str, str] = {
    "smollm": "llama",
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "minimax_text_01": "minimax",
    "MiniMaxText01": "minimax",
    "minimax_m1": "minimax",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
}
