"""Weights of one rank by part, counted from the Program's own ops.

The ledger, the launch advice and the loader must agree on what a model holds, so the count walks the very ops
that run. A part is what publishers give one number format: the embedding and the output head stay at 16 bits
where the rest is quantized, norms and biases always do. Tied embeddings are counted once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mansard.program.decoder import decoder
from mansard.program.ops import (
    Attention,
    Embed,
    LatentAttention,
    Linear,
    LinearAttention,
    Logits,
    MoE,
    Op,
    RmsNorm,
    RopeAndCache,
)
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import num_active_parameters

WeightPart: TypeAlias = Literal["embedding", "head", "attention", "mlp", "experts", "router", "norms"]
PARTS: tuple[WeightPart, ...] = ("embedding", "head", "attention", "mlp", "experts", "router", "norms")


@dataclass(frozen=True, slots=True)
class WeightCount:
    """How many weights one rank holds of each part, and of one layer's routed experts.

    `norms` holds every vector: norms, biases, sinks, decay rates.
    """

    parts: Mapping[WeightPart, int]

    @property
    def total(self) -> int:
        """Return all weights of the rank."""
        return sum(self.parts.values())


@functools.lru_cache(maxsize=256)
def count_weights(spec: ModelSpec, tensor_parallel: int = 1) -> WeightCount:
    """Count the weights of one of `tensor_parallel` ranks, part by part.

    Raises: ValueError when the heads or widths cannot be divided by `tensor_parallel`.
    """
    program = decoder(spec, tensor_parallel=tensor_parallel)
    counts: dict[WeightPart, int] = dict.fromkeys(PARTS, 0)
    stored: set[str] = set()
    for op in program.ops:
        if isinstance(op, Embed | Logits):
            if op.weight in stored:
                continue
            stored.add(op.weight)
        for part, count in _op_weights(op).items():
            counts[part] += count
    return WeightCount(counts)


def num_multiplied_parameters(spec: ModelSpec) -> int:
    """Return how many parameters one token is multiplied with: active ones, without an untied input embedding.

    This is the N of 2·N and 6·N FLOPs a token, and what publishers of mixtures of experts call active.
    """
    active = num_active_parameters(spec)
    return active if spec.tie_word_embeddings else active - count_weights(spec).parts["embedding"]


def _op_weights(op: Op) -> dict[WeightPart, int]:
    """Return the weights that one op reads, by part."""
    match op:
        case Embed():
            return {"embedding": op.vocab_size * op.hidden_size}
        case Logits():
            return {"head": op.vocab_size * op.hidden_size}
        case RmsNorm():
            return {"norms": op.size}
        case Linear():
            rows = sum(op.out_features)
            return {_linear_part(op.weights[0]): rows * op.in_features, "norms": rows if op.biases else 0}
        case RopeAndCache():
            return {"norms": op.head_dim * ((op.q_norm is not None) + (op.k_norm is not None))}
        case Attention():
            return {"norms": op.num_heads if op.sinks else 0}
        case LatentAttention():
            return _latent_weights(op)
        case LinearAttention():
            return _linear_attention_weights(op)
        case MoE():
            return _expert_weights(op)
    return {}


def _linear_part(weight: str) -> WeightPart:
    if "attn" in weight:
        return "attention"
    return "router" if weight.endswith("shared_expert_gate.weight") else "mlp"


def _latent_weights(op: LatentAttention) -> dict[WeightPart, int]:
    """Count MLA's projections (arXiv 2405.04434, section 2.1); each rank holds the down-projections."""
    query = op.num_heads * (op.qk_nope_head_dim + op.qk_rope_head_dim)
    rank = op.q_lora_rank
    queries = op.hidden_size * query if rank is None else rank * (op.hidden_size + query)
    down = op.hidden_size * (op.kv_lora_rank + op.qk_rope_head_dim)
    up = op.kv_lora_rank * op.num_heads * (op.qk_nope_head_dim + op.v_head_dim)
    return {"attention": queries + down + up, "norms": op.kv_lora_rank + (rank or 0)}


def _linear_attention_weights(op: LinearAttention) -> dict[WeightPart, int]:
    """Count a gated delta-rule layer: q, k, v, z, b, a, the convolution, decay rates and the gated norm."""
    keys, values = op.num_key_heads * op.key_head_dim, op.num_value_heads * op.value_head_dim
    rows = 2 * keys + 2 * values + 2 * op.num_value_heads
    convolution = (2 * keys + values) * op.conv_kernel_size
    return {
        "attention": op.hidden_size * rows + convolution,
        "norms": 2 * op.num_value_heads + op.value_head_dim,
    }


def _expert_weights(op: MoE) -> dict[WeightPart, int]:
    biases = op.num_experts * (2 * op.size + op.hidden_size) if op.gate_bias else 0
    router_vectors = op.num_experts * ((op.router_bias is not None) + (op.score_correction_bias is not None))
    return {
        "experts": 3 * op.num_experts * op.size * op.hidden_size,
        "router": op.num_experts * op.hidden_size,
        "norms": biases + router_vectors,
    }
