"""Work: what each op of a Program asks of the hardware, before any hardware is known.

Counts FLOPs (a multiply-add is 2), bytes of weights, activations and KV cache, and bytes sent to other ranks,
op by op, from the sizes the Program already carries for one rank. How long that takes is `roofline`'s
business. Repeated layers are counted once and multiplied.

Source of the counts: Kaplan et al. (arXiv 2001.08361) 2 FLOPs per weight and token; DeepSeek-V2 (arXiv
2405.04434) for the absorbed form of MLA in decode; Yang et al. (arXiv 2412.06464) for the gated delta rule.
"""

from __future__ import annotations

from mansard.cost.attention_work import attention_work, latent_attention_work, linear_attention_work
from mansard.cost.formats import Formats, Part
from mansard.cost.shape import Number, StepShape
from mansard.cost.work import Layout, Work
from mansard.program.ops import (
    AllGather,
    AllReduce,
    Attention,
    Embed,
    GatedActivation,
    LatentAttention,
    Linear,
    LinearAttention,
    Logits,
    MoE,
    Op,
    RmsNorm,
    RopeAndCache,
    SigmoidGate,
)

__all__ = ["Layout", "Work", "kv_bytes_per_token", "resident_weight_bytes", "send_work", "touched_experts", "work_of"]


def touched_experts(num_experts: int, top_k: int, tokens: Number) -> Number:
    """Return how many experts `tokens` tokens use in expectation: E(1 − (1 − k/E)^tokens).

    Source: expected occupancy under uniform independent routing; a trained router differs little in sum.
    """
    miss: Number = (1.0 - top_k / num_experts) ** tokens
    return num_experts * (1.0 - miss)


def linear_work(op: Linear, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count a matrix multiplication of the step's tokens with one weight matrix."""
    tokens = shape.num_tokens
    rows = sum(op.out_features)
    part = _part_of(op.weights[0])
    reads = tokens * (op.in_features + rows) * formats.activation_bytes
    return [
        Work(
            name="+".join(_short(w) for w in op.weights),
            kind="gemm",
            part=part,
            count=count,
            launches=1.0,
            flops=2.0 * tokens * op.in_features * rows,
            weight_bytes=rows * op.in_features * formats.weight_bytes(part),
            activation_bytes=reads + (tokens * rows * formats.activation_bytes if op.add_to_output else 0.0),
            tokens=tokens,
        )
    ]


def moe_work(op: MoE, count: int, shape: StepShape, formats: Formats, layout: Layout) -> list[Work]:
    """Count routed experts on the busiest rank: weights of the experts touched, FLOPs of its share of the
    tokens.

    The op's `size` is one tensor-parallel rank's; data-parallel ranks bring their tokens together.
    """
    tokens = shape.num_tokens * layout.data_parallel
    touched = touched_experts(op.num_experts, op.top_k, tokens) / layout.expert_parallel
    width = op.size * layout.tensor_parallel / layout.expert_tensor_parallel
    matrices = 3.0 * op.hidden_size * width
    pairs = tokens * op.top_k / layout.expert_parallel
    router = float(op.num_experts * op.hidden_size)
    return [
        Work(
            name="router",
            kind="gemm",
            part="router",
            count=count,
            launches=1.0,
            flops=2.0 * shape.num_tokens * router,
            weight_bytes=router * formats.weight_bytes("router"),
            activation_bytes=shape.num_tokens * (op.hidden_size + op.num_experts) * formats.activation_bytes,
            tokens=shape.num_tokens,
        ),
        Work(
            name="experts",
            kind="moe",
            part="experts",
            count=count,
            launches=1.0,
            flops=2.0 * pairs * matrices,
            weight_bytes=touched * matrices * formats.weight_bytes("experts"),
            activation_bytes=pairs * (2.0 * op.hidden_size + 3.0 * width) * formats.activation_bytes,
            tokens=pairs,
        ),
        *_exchange_work(op, count, shape, formats, layout),
    ]


def _exchange_work(op: MoE, count: int, shape: StepShape, formats: Formats, layout: Layout) -> list[Work]:
    """Count what data-parallel ranks send so that every token meets its experts, and back."""
    if layout.data_parallel == 1:
        return []
    ranks = layout.tensor_parallel * layout.data_parallel
    copies = min(op.top_k, ranks) if layout.expert_parallel > 1 else ranks
    return [
        Work(
            name="expert exchange",
            kind="network",
            part="none",
            count=count,
            launches=2.0,  # dispatch, combine
            network_bytes=2.0 * shape.num_tokens * copies * op.hidden_size * formats.activation_bytes,
            num_ranks=ranks,
            tokens=shape.num_tokens,
            collective="all_to_all",
        )
    ]


def small_work(
    op: RmsNorm | RopeAndCache | GatedActivation | SigmoidGate | Embed, count: int, shape: StepShape, formats: Formats
) -> list[Work]:
    """Count an op that reads and writes each activation once: norm, rotation, gate, embedding lookup."""
    tokens, kv_bytes, width = shape.num_tokens, 0.0 * shape.num_tokens, 0.0
    match op:
        case RmsNorm():
            name, width = "norm", 2.0 * op.size + (op.size if op.add_to_output else 0)
        case RopeAndCache():
            name, width = "rope + cache", 2.0 * (op.num_heads + op.num_kv_heads) * op.head_dim
            kv_bytes = tokens * 2.0 * op.num_kv_heads * op.head_dim * formats.kv_bytes
        case GatedActivation():
            name, width = "activation", op.size * (3.0 if op.gated else 2.0)
        case SigmoidGate():
            name, width = "sigmoid gate", 2.0 * op.size + op.gate_size
        case Embed():
            name, width = "embedding", 2.0 * op.hidden_size
    return [
        Work(
            name=name,
            kind="elementwise",
            part="none",
            count=count,
            launches=1.0,
            flops=tokens * width * 2.0,
            activation_bytes=tokens * width * formats.activation_bytes,
            kv_bytes=kv_bytes,
            tokens=tokens,
        )
    ]


def head_work(op: Logits, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count the output head over the rows that sample."""
    rows = shape.num_logit_rows
    return [
        Work(
            name="output head",
            kind="gemm",
            part="head",
            count=count,
            launches=1.0,
            flops=2.0 * rows * op.hidden_size * op.vocab_size,
            weight_bytes=op.hidden_size * op.vocab_size * formats.weight_bytes("head"),
            activation_bytes=rows * (op.hidden_size + op.vocab_size) * formats.activation_bytes,
            tokens=rows,
        )
    ]


def network_work(op: AllReduce | AllGather, count: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count a collective over the tensor-parallel ranks; `network_bytes` is the message of one rank."""
    rows = shape.num_logit_rows if op.register == "logits" else shape.num_tokens
    if op.num_ranks == 1:
        return []
    return [
        Work(
            name="all-reduce" if isinstance(op, AllReduce) else "all-gather",
            kind="network",
            part="none",
            count=count,
            launches=1.0,
            network_bytes=rows * op.size * formats.activation_bytes,
            num_ranks=op.num_ranks,
            tokens=rows,
            collective="all_reduce" if isinstance(op, AllReduce) else "all_gather",
        )
    ]


def work_of(op: Op, count: int, shape: StepShape, formats: Formats, layout: Layout) -> list[Work]:
    """Count one op of a program (`count` equal ones) for one step."""
    match op:
        case Linear():
            return linear_work(op, count, shape, formats)
        case Attention():
            return attention_work(op, count, shape, formats)
        case LatentAttention():
            return latent_attention_work(op, count, shape, formats)
        case LinearAttention():
            return linear_attention_work(op, count, shape, formats)
        case MoE():
            return moe_work(op, count, shape, formats, layout)
        case Logits():
            return head_work(op, count, shape, formats)
        case AllReduce() | AllGather():
            return network_work(op, count, shape, formats)
        case RmsNorm() | RopeAndCache() | GatedActivation() | SigmoidGate() | Embed():
            return small_work(op, count, shape, formats)


def _short(weight: str) -> str:
    """Return the module of a canonical weight name: `…self_attn.q_proj.weight` → `q_proj`."""
    parts = weight.split(".")
    return parts[-2] if len(parts) > 1 else weight


def _part_of(weight: str) -> Part:
    """Say which part of the model a Linear's weight belongs to."""
    if "attn" in weight or "attention" in weight:
        return "attention"
    return "router" if weight.endswith(("mlp.gate.weight", "shared_expert_gate.weight")) else "mlp"


def send_work(layout: Layout, hidden_size: int, shape: StepShape, formats: Formats) -> list[Work]:
    """Count the hand-over of activations between pipeline stages."""
    if layout.pipeline_parallel == 1:
        return []
    return [
        Work(
            name="stage hand-over",
            kind="network",
            part="none",
            count=layout.pipeline_parallel - 1,
            launches=1.0,
            network_bytes=shape.num_tokens * hidden_size * formats.activation_bytes,
            num_ranks=layout.num_ranks,
            tokens=shape.num_tokens,
            collective="send",
        )
    ]


def resident_weight_bytes(op: Op, formats: Formats, layout: Layout) -> float:
    """Return the bytes of weights an op keeps on one rank (all experts, not the touched ones; norms left out)."""
    if isinstance(op, Embed):
        return op.vocab_size * op.hidden_size * formats.activation_bytes
    one = StepShape(num_decodes=1.0, decode_context=1.0)
    works = work_of(op, 1, one, formats, layout)
    if isinstance(op, MoE):
        touched = float(touched_experts(op.num_experts, op.top_k, float(layout.data_parallel)))
        return sum(float(w.weight_bytes) * (op.num_experts / touched if w.kind == "moe" else 1.0) for w in works)
    return sum(float(w.weight_bytes) for w in works)


def kv_bytes_per_token(op: Op, formats: Formats) -> float:
    """Return the KV-cache bytes an op keeps for one token of context on one rank, windows not considered."""
    match op:
        case Attention():
            return 2.0 * op.num_kv_heads * op.head_dim * formats.kv_bytes
        case LatentAttention():
            return (op.kv_lora_rank + op.qk_rope_head_dim) * formats.kv_bytes
        case _:
            return 0.0
