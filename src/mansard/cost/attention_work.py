"""The work of attention: softmax attention over a paged cache, latent attention, linear attention.

A decode streams its keys and values once; a prompt's chunk multiplies every causal pair; linear attention reads and
writes one state of fixed size a sequence.

Source: DeepSeek-V2 (arXiv 2405.04434) for latent attention, absorbed in decode and expanded in prefill; Yang et al.
(arXiv 2412.06464) for the gated delta rule.
"""

from __future__ import annotations

from mansard.cost.formats import Formats
from mansard.cost.shape import StepShape, is_any, smallest
from mansard.cost.work import Work
from mansard.program.ops import Attention, LatentAttention, LinearAttention


def attention_work(op: Attention, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count softmax attention: decodes stream their KV, chunks compute q·k and p·v for every causal pair."""
    limit = op.window if op.window is not None else op.chunk
    width = op.num_heads * op.head_dim
    return _both_phases(
        "attention",
        count,
        shape,
        limit,
        decode_flops=4.0 * width,
        pair_flops=4.0 * width,
        kv_bytes=2.0 * op.num_kv_heads * op.head_dim * formats.kv_bytes,
        query_bytes=2.0 * width * formats.activation_bytes,  # queries in, outputs out
    )


def latent_attention_work(op: LatentAttention, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count MLA: projections, absorbed attention over the latent cache in decode, expanded heads in prefill."""
    tokens, heads, latent, rope = shape.num_tokens, op.num_heads, op.kv_lora_rank, op.qk_rope_head_dim
    query_width = heads * (op.qk_nope_head_dim + rope)
    down = (op.q_lora_rank or 0) + latent + rope
    up_in = op.q_lora_rank or op.hidden_size
    value_up = latent * heads * (op.qk_nope_head_dim + op.v_head_dim)
    weights = float(op.hidden_size * down + up_in * query_width + value_up)
    moved = op.hidden_size + 2.0 * down + 2.0 * query_width + 2.0 * heads * latent
    projections = Work(
        name="latent projections",
        kind="gemm",
        part="attention",
        count=count,
        launches=4.0,  # down, query up, absorbed key, absorbed value
        flops=2.0 * tokens * weights,
        weight_bytes=weights * formats.weight_bytes("attention"),
        activation_bytes=tokens * moved * formats.activation_bytes,
        tokens=tokens,
    )
    return [
        projections,
        *_both_phases(
            "latent attention",
            count,
            shape,
            None,
            decode_flops=2.0 * heads * (2.0 * latent + rope),
            pair_flops=2.0 * (query_width + heads * op.v_head_dim),
            kv_bytes=(latent + rope) * formats.kv_bytes,
            query_bytes=2.0 * query_width * formats.activation_bytes,
        ),
    ]


def _both_phases(
    name: str,
    count: int,
    shape: StepShape,
    limit: int | None,
    *,
    decode_flops: float,
    pair_flops: float,
    kv_bytes: float,
    query_bytes: float,
) -> list[Work]:
    """Count attention's decodes and chunks: FLOPs a key or pair, bytes a cached token, bytes a query."""
    works: list[Work] = []
    decodes, prompt_tokens = shape.num_decodes * shape.decode_tokens, shape.num_prefills * shape.prefill_tokens
    if is_any(shape.num_decodes):
        keys = shape.decode_kv_tokens(limit)
        works.append(
            Work(
                name=f"{name} (decode)",
                kind="decode_attention",
                part="none",
                count=count,
                launches=smallest(shape.num_decodes, 1.0),
                flops=decode_flops * keys * shape.decode_tokens,
                kv_bytes=keys * kv_bytes,
                activation_bytes=decodes * query_bytes,
                tokens=shape.num_decodes,
            )
        )
    if is_any(shape.num_prefills):
        works.append(
            Work(
                name=f"{name} (prefill)",
                kind="prefill_attention",
                part="none",
                count=count,
                launches=smallest(shape.num_prefills, 1.0),
                flops=pair_flops * shape.prefill_pairs(limit),
                kv_bytes=shape.prefill_kv_tokens(limit) * kv_bytes,
                activation_bytes=prompt_tokens * query_bytes,
                tokens=shape.prefill_tokens + shape.prefill_start,
            )
        )
    return works


def linear_attention_work(op: LinearAttention, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count a gated delta-rule layer: its projections, and one state read and written per sequence."""
    tokens = shape.num_tokens
    keys, values = op.num_key_heads * op.key_head_dim, op.num_value_heads * op.value_head_dim
    rows = 2 * keys + 2 * values + 2 * op.num_value_heads
    state = float(op.num_value_heads * op.key_head_dim * op.value_head_dim)
    conv = float((2 * keys + values) * op.conv_kernel_size)
    state_bytes = 2.0 * (state * formats.state_bytes + conv * formats.activation_bytes)  # read and written
    return [
        Work(
            name="linear-attention projections",
            kind="gemm",
            part="attention",
            count=count,
            launches=2.0,
            flops=2.0 * tokens * op.hidden_size * rows,
            weight_bytes=rows * op.hidden_size * formats.weight_bytes("attention"),
            activation_bytes=tokens * (op.hidden_size + rows) * formats.activation_bytes,
            tokens=tokens,
        ),
        Work(
            name="linear attention",
            kind="linear_attention",
            part="none",
            count=count,
            launches=3.0,  # convolution, recurrence, gated norm
            flops=tokens * (8.0 * state + 2.0 * conv),
            kv_bytes=shape.num_sequences * state_bytes,
            activation_bytes=tokens * (2.0 * rows + values) * formats.activation_bytes,
            tokens=tokens,
        ),
    ]
