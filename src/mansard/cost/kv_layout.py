"""What a sequence's cache is made of: groups of layers that keep the same thing, and their bytes on one rank.

Full layers keep every token, sliding ones a window, chunked ones a chunk, linear ones a state of fixed size;
MLA keeps one compressed vector instead of keys and values. The popular formula `2 · L · hidden · bytes` is
right for none of these: it takes every query head for a KV head.

Source: DeepSeek-V2 (arXiv 2405.04434) for MLA; vLLM's KV-cache groups for how an allocator packs hybrids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mansard.cost.parallelism import kv_heads_per_rank
from mansard.specs.model import LayerType, ModelSpec
from mansard.specs.precision import kv_cache_format, number_format

STATE_BYTES = 4.0  # recurrent state of linear attention, fp32


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one kind on one rank.

    Units: `token_bytes` bytes a cached token in one layer; `state_bytes` bytes a sequence in one layer
    (linear). `reach` is how many tokens a layer needs: a window, a chunk, or None for all.
    """

    kind: LayerType
    num_layers: int
    token_bytes: float = 0.0
    state_bytes: float = 0.0
    reach: int | None = None


def kv_layer_bytes(spec: ModelSpec, kv_format: str = "bf16", tensor_parallel: int = 1) -> float:
    """Return the bytes one token takes in one layer with attention, on one rank.

    `2 · K/TP · D · bytes`; MLA `(rank + rope) · bytes` whatever the TP. Integer formats count their scales.
    """
    if spec.mla is not None:
        width = spec.mla.kv_lora_rank + spec.mla.qk_rope_head_dim
        return width * kv_cache_format(kv_format, width).bits_per_weight / 8.0
    heads = 2 * kv_heads_per_rank(spec, tensor_parallel)
    return heads * spec.head_dim * kv_cache_format(kv_format, spec.head_dim).bits_per_weight / 8.0


def layer_groups(
    spec: ModelSpec, kv_format: str = "bf16", tensor_parallel: int = 1, num_nextn_layers: int = 0
) -> tuple[LayerGroup, ...]:
    """Return the layers by kind, full ones first; `num_nextn_layers` draft layers are full ones beside the model's."""
    kinds: list[LayerType] = [spec.layer_type(layer) for layer in range(spec.num_hidden_layers)]
    kinds += ["full"] * num_nextn_layers
    token_bytes = kv_layer_bytes(spec, kv_format, tensor_parallel)
    reach = {"full": None, "sliding": spec.sliding_window, "chunked": spec.attention_chunk_size, "linear": None}
    order: tuple[LayerType, ...] = ("full", "sliding", "chunked", "linear")
    return tuple(
        LayerGroup(
            kind,
            kinds.count(kind),
            0.0 if kind == "linear" else token_bytes,
            linear_state_bytes(spec, tensor_parallel) if kind == "linear" else 0.0,
            reach[kind],
        )
        for kind in order
        if kind in kinds
    )


def linear_state_bytes(spec: ModelSpec, tensor_parallel: int = 1) -> float:
    """Return the bytes of one linear layer's state for one sequence on one rank.

    The recurrent state is fp32, the convolution's tail 16 bit.
    """
    linear = spec.linear_attention
    if linear is None:
        return 0.0
    keys, values = linear.num_key_heads * linear.key_head_dim, linear.num_value_heads * linear.value_head_dim
    recurrent = values * linear.key_head_dim * STATE_BYTES
    convolution = (linear.conv_kernel_size - 1) * (2 * keys + values) * 2.0
    return (recurrent + convolution) / tensor_parallel


def kv_bytes_per_token(spec: ModelSpec, kv_format: str = "bf16", tensor_parallel: int = 1) -> float:
    """Return the bytes that one more token takes on one rank while every layer still keeps it (inside all windows)."""
    return sum(g.num_layers * g.token_bytes for g in layer_groups(spec, kv_format, tensor_parallel))


def sequence_bytes(
    spec: ModelSpec, num_tokens: int, kv_format: str = "bf16", tensor_parallel: int = 1, chunk: int = 0
) -> float:
    """Return the bytes that a sequence of `num_tokens` needs on one rank, without an allocator's rounding.

    `chunk` tokens of a prefill beyond a window are kept until the step that computes them is over.
    """
    return sum(_group_bytes(g, num_tokens, chunk) for g in layer_groups(spec, kv_format, tensor_parallel))


def _group_bytes(group: LayerGroup, num_tokens: int, chunk: int) -> float:
    kept = num_tokens if group.reach is None else min(num_tokens, group.reach + chunk)
    return group.num_layers * (group.token_bytes * kept + group.state_bytes)


def multi_head_bytes_per_token(spec: ModelSpec, kv_format: str = "bf16") -> float:
    """Return what the popular formula `2 · L · H · D · bytes` says: right for multi-head attention alone.

    Kept to show how far it is off (Llama-2-70B: 8 times too much).
    """
    width = spec.num_attention_heads * spec.head_dim
    return 2.0 * spec.num_hidden_layers * width * number_format(kv_format).bits_per_weight / 8.0


def latent_expanded_bytes_per_token(spec: ModelSpec, kv_format: str = "bf16") -> float:
    """Return the bytes a token takes when MLA's latent is expanded to keys and values of every head (MLA disabled).

    Raises: ValueError for a model without MLA.
    """
    mla = spec.mla
    if mla is None:
        raise ValueError(f"{spec.name or spec.model_type} has no latent attention")
    width = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    heads = spec.num_hidden_layers * spec.num_attention_heads
    return heads * width * number_format(kv_format).bits_per_weight / 8.0


def total_layers(groups: Iterable[LayerGroup]) -> int:
    """Return the number of layers in `groups`."""
    return sum(group.num_layers for group in groups)
