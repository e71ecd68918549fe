"""ModelSpec: a model's architecture as data.

One frozen description serves the loader, the program builder, the executors and the planner. Field names are
Hugging Face's. What differs between model families is a field here, never a subclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerType = Literal["full", "sliding", "chunked", "linear"]
RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "none"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "swiglu_oai"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding: base, rotated width and how it is stretched beyond the trained context.

    Source: RoFormer (arXiv 2104.09864); llama3, yarn (arXiv 2309.00071) and longrope (arXiv 2402.13753) scaling.
    """

    theta: float = 10_000.0
    rotary_dim: int | None = None  # None: the whole head
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int | None = None  # llama3, yarn, longrope
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn, longrope: multiplies cos and sin; None: derived
    mscale: float | None = None  # yarn (DeepSeek)
    mscale_all_dim: float | None = None  # yarn (DeepSeek)
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    short_factor: tuple[float, ...] = ()  # longrope
    long_factor: tuple[float, ...] = ()  # longrope


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Mixture of experts: which layers have it, how many experts run for a token and how they are chosen."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    num_shared_experts: int = 0
    shared_expert_intermediate_size: int = 0  # total width of all shared experts together
    shared_expert_gate: bool = False  # Qwen2-MoE: sigmoid gate on the shared experts' output
    scoring: Literal["softmax", "sigmoid", "softmax_after_topk"] = "softmax"
    norm_topk_prob: bool = True
    router_bias: bool = False  # gpt-oss: a bias in the router's linear
    score_correction_bias: bool = False  # DeepSeek-V3: a bias used for the choice alone
    expert_bias: bool = False  # gpt-oss: biases in the experts' linears
    num_expert_groups: int = 1  # DeepSeek: experts are chosen within the best groups
    topk_groups: int = 1
    routed_scaling_factor: float = 1.0
    layers: tuple[int, ...] | None = None  # layers with experts; None: all


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one compressed KV vector for all heads."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True, slots=True)
class LinearAttentionSpec:
    """Gated linear attention layers (Qwen3-Next, Qwen3.5): a fixed-size state instead of a growing KV cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The architecture of one decoder-only language model.

    Build it with `from_hf` (a config.json), `from_gguf` (GGUF metadata) or `preset`; see `mansard.specs`.
    """

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: Activation = "silu"
    gated_mlp: bool = True  # False: up, activation, down (OPT, Falcon, GPT-style)
    activation_limit: float | None = None  # gpt-oss: clamp of gate and up
    rope: RopeSpec = RopeSpec()
    rope_local: RopeSpec | None = None  # Gemma 3: sliding layers rotate with another base
    layer_types: tuple[LayerType, ...] = ()  # empty: all full
    sliding_window: int | None = None  # tokens a sliding layer sees, its own included
    attention_chunk_size: int | None = None  # Llama 4 style chunked layers
    query_scale: float | None = None  # multiplies q·k; None: head_dim ** -0.5
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k before the rotation
    attention_output_gate: bool = False  # Qwen3-Next: q_proj also yields a sigmoid gate on attention's output
    attention_sinks: bool = False  # gpt-oss: a learned logit per head in the softmax's denominator
    norm_unit_offset: bool = False  # Gemma: multiply by (1 + weight)
    sandwich_norms: bool = False  # Gemma 2/3: a norm after attention and after the MLP too
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    tie_word_embeddings: bool = False
    fused_qkv: bool = False  # Phi-3: q, k and v are one stored tensor
    fused_gate_up: bool = False  # Phi-3: gate and up are one stored tensor
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    linear_attention: LinearAttentionSpec | None = None
    num_nextn_predict_layers: int = 0  # multi-token-prediction layers stored beside the model
    name: str = ""

    def layer_type(self, layer: int) -> LayerType:
        """Return how `layer` attends."""
        return self.layer_types[layer] if self.layer_types else "full"

    def has_experts(self, layer: int) -> bool:
        """Say whether `layer`'s MLP is a mixture of experts."""
        return self.moe is not None and (self.moe.layers is None or layer in self.moe.layers)
