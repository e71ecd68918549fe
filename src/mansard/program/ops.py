"""The typed ops of a Program: what a model computes in one step, in order.

A register (`"x"`, `"h"`, `"qkv"` …) is a [T, width] activation buffer named by a string; T is the number of tokens in
the step. A weight is named by its canonical name, which is Hugging Face's Llama-style name
(`model.layers.3.self_attn.q_proj.weight`); a loader maps what a file calls it. Each op's meaning is defined by
`mansard.runtime.reference`. Sizes are those of one tensor-parallel rank.

Shape letters: T tokens, H query heads, K KV heads, D head dim, E experts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.specs.model import Activation, RopeSpec


@dataclass(frozen=True, slots=True)
class Embed:
    """output = weight[token_id] · scale."""

    output: str
    weight: str
    vocab_size: int
    hidden_size: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """y = input / rms(input) · weight (or 1 + weight); output = y, or output += y when `add_to_output`."""

    input: str
    output: str
    weight: str
    size: int
    eps: float
    unit_offset: bool = False
    add_to_output: bool = False


@dataclass(frozen=True, slots=True)
class Linear:
    """output = input · Wᵀ + bias, W being the rows of `weights` one after the other; or output += … .

    `out_features[i]` rows come from `weights[i]`, with `biases[i]` (empty tuple: no biases at all).
    """

    input: str
    output: str
    weights: tuple[str, ...]
    in_features: int
    out_features: tuple[int, ...]
    biases: tuple[str, ...] = ()
    add_to_output: bool = False
    parallel: Literal["replicated", "column", "row"] = "replicated"


@dataclass(frozen=True, slots=True)
class RopeAndCache:
    """Normalize (optionally) and rotate q and k inside `qkv` in place, then write k and v into the KV cache.

    qkv: [T, (H + 2K) · D], q heads first, then k, then v. Halves of a head are rotated against each other (the
    Hugging Face convention). `cache_layer` is the index of this layer's KV cache.
    """

    qkv: str
    cache_layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    max_position_embeddings: int
    q_norm: str | None = None
    k_norm: str | None = None
    norm_eps: float = 1e-6
    norm_unit_offset: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal softmax attention of the step's queries over the cached keys and values of their sequences.

    qkv: [T, (H + 2K) · D]; output: [T, H · D]. A query at position p sees keys in [max(0, p + 1 - window), p];
    with `chunk` only those of its own chunk. `sinks` names a [H] weight: one extra logit per head that takes
    probability and adds no value. Scores are q·k · scale, then cap · tanh(score / cap) when `softcap` is set.
    """

    qkv: str
    output: str
    cache_layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: str | None = None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA attention over a compressed cache of kv_lora_rank + qk_rope_head_dim values a token (priced, not yet run).

    input: [T, hidden]; output: [T, H · v_head_dim]. The projections of queries (q_proj, or q_a_proj, its norm and
    q_b_proj) and of keys and values (kv_a_proj_with_mqa, its norm, kv_b_proj) are part of the op; o_proj is a Linear
    after it. `num_heads` is one rank's; the down-projections are replicated.
    """

    input: str
    output: str
    cache_layer: int
    hidden_size: int
    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None
    prefix: str  # weights are `{prefix}.q_a_proj.weight`, `{prefix}.kv_b_proj.weight` …


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta-rule attention with a fixed-size state per sequence (priced, not yet run).

    input: [T, hidden]; output: [T, Hv · Dv]. The projections of q, k, v, z (output gate), b and a (decay), the short
    convolution over q, k, v and the gated norm are part of the op; out_proj is a Linear after it.
    """

    input: str
    output: str
    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int
    prefix: str


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """output = act(gate) · up for input = [gate, up]; without `gated`, output = act(input).

    `swiglu_oai` (gpt-oss): gate ≤ limit, |up| ≤ limit, gate · sigmoid(1.702 · gate) · (up + 1).
    """

    input: str
    output: str
    size: int
    activation: Activation
    gated: bool = True
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class MoE:
    """Route each token to `top_k` of `num_experts` gated MLPs and add (or write) their weighted sum.

    Expert weights are stacked: gate and up [E, size, hidden], down [E, hidden, size]. Scores: `softmax` over all
    experts then top-k; `sigmoid` then top-k; `softmax_after_topk`: top-k of logits, softmax among them.
    """

    input: str
    output: str
    router: str
    gate: str
    up: str
    down: str
    num_experts: int
    top_k: int
    hidden_size: int
    size: int
    activation: Activation
    scoring: Literal["softmax", "sigmoid", "softmax_after_topk"]
    norm_topk_prob: bool
    routed_scaling_factor: float = 1.0
    limit: float | None = None
    router_bias: str | None = None
    score_correction_bias: str | None = None
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None
    num_expert_groups: int = 1
    topk_groups: int = 1
    add_to_output: bool = False


@dataclass(frozen=True, slots=True)
class SigmoidGate:
    """output = input · sigmoid(gate), or output += …; gate: [T, gate_size] with gate_size 1 or `size`."""

    input: str
    gate: str
    output: str
    size: int
    gate_size: int = 1
    add_to_output: bool = False


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum `register` over the tensor-parallel ranks; then, with `add_to`, add the sum to that register too.

    A bias of the row-parallel Linear before it is added by one rank alone.
    """

    register: str
    size: int
    num_ranks: int
    add_to: str | None = None


@dataclass(frozen=True, slots=True)
class AllGather:
    """Put the columns of `register` from all ranks side by side: `size` columns from each; for `"logits"`."""

    register: str
    size: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class Logits:
    """logits = input[sampled rows] · weightᵀ · scale, then softcap; only the rows that sample are computed.

    The result is the register `"logits"`: [rows that sample, vocab_size].
    """

    input: str
    weight: str
    hidden_size: int
    vocab_size: int
    scale: float = 1.0
    softcap: float | None = None


Op = (
    Embed
    | RmsNorm
    | Linear
    | RopeAndCache
    | Attention
    | LatentAttention
    | LinearAttention
    | GatedActivation
    | MoE
    | SigmoidGate
    | AllReduce
    | AllGather
    | Logits
)


@dataclass(frozen=True, slots=True)
class Program:
    """A model's step on one rank: ops in order, and the KV caches they use.

    `layers[i]` is the decoder layer that `ops[i]` belongs to (-1: before or after the layers), for tables by layer.
    """

    ops: tuple[Op, ...]
    layers: tuple[int, ...]
    num_cache_layers: int
    tensor_parallel: int = 1
