"""Sizes: how many parameters a model has and how many bytes its cache takes, from the ModelSpec alone.

Counting is arithmetic over the architecture, by part, and equals what a checkpoint holds (a law of the
tests). Of LayerNorm families (OPT, Falcon) the norms' biases and learned positions are not counted.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from mansard.specs.model import LinearAttentionSpec, MlaSpec, ModelSpec, MoeSpec
from mansard.specs.precision import kv_cache_format, number_format


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters by part; biases belong to the part whose linear they are of."""

    embedding: int
    attention: int
    mlp: int  # dense MLPs
    experts: int  # routed experts
    shared_experts: int  # with their gate
    router: int
    norms: int
    head: int  # 0 when tied to the embedding

    @property
    def total(self) -> int:
        """Return all parameters, multi-token-prediction layers left out."""
        return sum(astuple(self))


def parameter_counts(spec: ModelSpec) -> ParameterCounts:
    """Count the parameters of `spec` by part."""
    layers = range(spec.num_hidden_layers)
    expert_layers = sum(spec.has_experts(layer) for layer in layers)
    moe = spec.moe
    return ParameterCounts(
        embedding=spec.vocab_size * spec.hidden_size,
        attention=sum(_attention(spec, layer) for layer in layers),
        mlp=(len(layers) - expert_layers) * _mlp(spec),
        experts=expert_layers * moe.num_experts * _expert(spec, moe) if moe else 0,
        shared_experts=expert_layers * _shared_experts(spec, moe) if moe else 0,
        router=expert_layers * _router(spec, moe) if moe else 0,
        norms=(len(layers) * (4 if spec.sandwich_norms else 2) + 1) * spec.hidden_size,
        head=0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size,
    )


def num_parameters(spec: ModelSpec) -> int:
    """Return how many parameters `spec` has."""
    return parameter_counts(spec).total


def num_active_parameters(spec: ModelSpec) -> int:
    """Return how many parameters one token uses: all but the routed experts that are not chosen for it."""
    counts = parameter_counts(spec)
    if spec.moe is None:
        return counts.total
    idle = counts.experts // spec.moe.num_experts * (spec.moe.num_experts - spec.moe.num_experts_per_tok)
    return counts.total - idle


def layer_kv_bytes_per_token(spec: ModelSpec, layer: int, kv_format: str = "bf16") -> int:
    """Return the cache bytes that one token takes in `layer`, scales included; 0 in a linear one.

    Latent attention stores one vector for all heads. Units: bytes.
    """
    if spec.layer_type(layer) == "linear":
        return 0
    if spec.mla is not None:
        width = spec.mla.kv_lora_rank + spec.mla.qk_rope_head_dim
        return kv_cache_format(kv_format, width).num_bytes(width)
    per_head = kv_cache_format(kv_format, spec.head_dim).num_bytes(spec.head_dim)
    return 2 * spec.num_key_value_heads * per_head


def kv_bytes_per_token(spec: ModelSpec, kv_format: str = "bf16") -> int:
    """Return the cache bytes that one token takes in all layers together. Units: bytes."""
    return sum(layer_kv_bytes_per_token(spec, layer, kv_format) for layer in range(spec.num_hidden_layers))


def kv_bytes(spec: ModelSpec, num_tokens: int, kv_format: str = "bf16", *, keep_all: bool = False) -> int:
    """Return the cache bytes of one sequence of `num_tokens`.

    A sliding layer needs no more tokens than its window, a chunked one no more than its chunk; with
    `keep_all` they keep every token, as an engine with one block table for all layers does. Units: bytes.
    """
    limits = {"sliding": spec.sliding_window, "chunked": spec.attention_chunk_size}
    total = 0
    for layer in range(spec.num_hidden_layers):
        limit = None if keep_all else limits.get(spec.layer_type(layer))
        tokens = num_tokens if limit is None else min(num_tokens, limit)
        total += tokens * layer_kv_bytes_per_token(spec, layer, kv_format)
    return total


def linear_state_bytes(spec: ModelSpec, state_format: str = "fp32", conv_format: str = "bf16") -> int:
    """Return the bytes of one sequence's fixed state in all linear-attention layers. Units: bytes."""
    linear = spec.linear_attention
    if linear is None:
        return 0
    state = linear.num_value_heads * linear.key_head_dim * linear.value_head_dim
    conv = _conv_channels(linear) * (linear.conv_kernel_size - 1)
    per_layer = number_format(state_format).num_bytes(state) + number_format(conv_format).num_bytes(conv)
    return sum(kind == "linear" for kind in spec.layer_types) * per_layer


def _linear(rows: int, columns: int, bias: bool) -> int:
    return rows * columns + (rows if bias else 0)


def _attention(spec: ModelSpec, layer: int) -> int:
    if spec.layer_type(layer) == "linear":
        assert spec.linear_attention is not None, "a linear layer without its shape"
        return _linear_attention(spec, spec.linear_attention)
    if spec.mla is not None:
        return _latent_attention(spec, spec.mla)
    q = spec.num_attention_heads * spec.head_dim
    kv = spec.num_key_value_heads * spec.head_dim
    gate = q if spec.attention_output_gate else 0
    norms = 2 * spec.head_dim if spec.qk_norm else 0
    sinks = spec.num_attention_heads if spec.attention_sinks else 0
    qkv = _linear(q + gate + 2 * kv, spec.hidden_size, spec.qkv_bias)
    return qkv + _linear(spec.hidden_size, q, spec.attention_output_bias) + norms + sinks


def _latent_attention(spec: ModelSpec, mla: MlaSpec) -> int:
    heads, hidden, rank = spec.num_attention_heads, spec.hidden_size, mla.q_lora_rank
    q = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    queries = hidden * q if rank is None else hidden * rank + rank + rank * q
    compressed = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    expanded = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return queries + compressed + expanded + heads * mla.v_head_dim * hidden


def _conv_channels(linear: LinearAttentionSpec) -> int:
    return 2 * linear.num_key_heads * linear.key_head_dim + linear.num_value_heads * linear.value_head_dim


def _linear_attention(spec: ModelSpec, linear: LinearAttentionSpec) -> int:
    """Count q, k, v, z, b and a, the convolution, decay and step per head, the gated norm, the output."""
    values = linear.num_value_heads * linear.value_head_dim
    rows = _conv_channels(linear) + values + 2 * linear.num_value_heads
    conv = _conv_channels(linear) * linear.conv_kernel_size
    small = 2 * linear.num_value_heads + linear.value_head_dim
    return rows * spec.hidden_size + conv + small + values * spec.hidden_size


def _mlp(spec: ModelSpec) -> int:
    up = _linear(spec.intermediate_size, spec.hidden_size, spec.mlp_bias)
    down = _linear(spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
    return (2 if spec.gated_mlp else 1) * up + down


def _expert(spec: ModelSpec, moe: MoeSpec) -> int:
    up = _linear(moe.moe_intermediate_size, spec.hidden_size, moe.expert_bias)
    return 2 * up + _linear(spec.hidden_size, moe.moe_intermediate_size, moe.expert_bias)


def _shared_experts(spec: ModelSpec, moe: MoeSpec) -> int:
    gate = spec.hidden_size if moe.shared_expert_gate else 0
    return 3 * moe.shared_expert_intermediate_size * spec.hidden_size + gate


def _router(spec: ModelSpec, moe: MoeSpec) -> int:
    correction = moe.num_experts if moe.score_correction_bias else 0
    return _linear(moe.num_experts, spec.hidden_size, moe.router_bias) + correction
