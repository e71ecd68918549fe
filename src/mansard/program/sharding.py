"""Shard: one tensor-parallel rank's share of a model's heads and widths.

Query heads, MLP widths and expert widths are divided; KV heads are divided while there are enough and
repeated on several ranks beyond that; the vocabulary is divided with the last rank padded.

Source: Megatron-LM (arXiv 1909.08053), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds: counts of heads and widths, in the units of the ModelSpec."""

    num_ranks: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    vocab_size: int


def shard(spec: ModelSpec, num_ranks: int) -> Shard:
    """Divide `spec` among `num_ranks`. Raises: ValueError naming the count that cannot be divided."""
    if num_ranks < 1:
        raise ValueError(f"tensor_parallel is {num_ranks}; it must be at least 1")
    moe, linear = spec.moe, spec.linear_attention
    dense = any(not spec.has_experts(layer) for layer in range(spec.num_hidden_layers))
    if linear is not None:
        _divide(linear.num_key_heads, num_ranks, "linear-attention key heads")
        _divide(linear.num_value_heads, num_ranks, "linear-attention value heads")
    return Shard(
        num_ranks,
        _divide(spec.num_attention_heads, num_ranks, "attention heads"),
        _kv_heads(spec.num_key_value_heads, num_ranks),
        _divide(spec.intermediate_size, num_ranks, "intermediate_size") if dense else 0,
        _divide(moe.moe_intermediate_size, num_ranks, "moe_intermediate_size") if moe else 0,
        _divide(moe.shared_expert_intermediate_size, num_ranks, "shared_expert_intermediate_size") if moe else 0,
        -(-spec.vocab_size // num_ranks),
    )


def _divide(count: int, num_ranks: int, what: str) -> int:
    if count % num_ranks:
        raise ValueError(f"tensor_parallel {num_ranks} does not divide {what} = {count}; choose a divisor")
    return count // num_ranks


def _kv_heads(count: int, num_ranks: int) -> int:
    if count % num_ranks and num_ranks % count:
        raise ValueError(f"tensor_parallel {num_ranks} neither divides {count} KV heads nor is a multiple of them")
    return max(1, count // num_ranks)
