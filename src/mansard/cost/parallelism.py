"""Which ways of splitting a model are possible, and why the others are not.

An engine refuses what does not divide, late and in its own words; a planner must not print such a command.
The rules are vLLM's: heads, padded vocabulary and widths divide by the tensor-parallel size; KV heads divide
by it or are repeated; experts divide by the expert-parallel size; attention under data parallelism is whole
on every rank.

Source: Megatron-LM (arXiv 1909.08053), section 3; vLLM's model-parallel layers (vocabulary padded to 64).
"""

from __future__ import annotations

from collections.abc import Iterable

from mansard.cost.op_cost import Layout
from mansard.specs.model import ModelSpec

VOCAB_PADDING = 64


def padded_vocab(vocab_size: int) -> int:
    """Return the vocabulary as engines store it: rounded up to a multiple of 64."""
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


def layout_problems(spec: ModelSpec, layout: Layout, group_size: int | None = None) -> tuple[str, ...]:
    """Return why `layout` is impossible for `spec`, one sentence with the numbers each; empty when it is possible.

    `group_size` is that of grouped weights (128 for w4a16), whose groups must not be cut.
    """
    sizes = {
        "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel,
        "data_parallel": layout.data_parallel,
        "expert_parallel": layout.expert_parallel,
    }
    wrong = tuple(f"{name} {size} must be at least 1" for name, size in sizes.items() if size < 1)
    if wrong:
        return wrong
    return (
        *_tensor_problems(spec, layout.tensor_parallel),
        *_width_problems(spec, layout, group_size),
        *_pipeline_problems(spec, layout.pipeline_parallel),
        *_expert_problems(spec, layout),
    )


def check_layout(spec: ModelSpec, layout: Layout, group_size: int | None = None) -> None:
    """Check that `layout` is possible for `spec`.

    Raises: ValueError with every reason and the tensor-parallel sizes that are possible.
    """
    problems = layout_problems(spec, layout, group_size)
    if problems:
        possible = ", ".join(map(str, tensor_parallel_sizes(spec, 16, group_size)))
        raise ValueError(
            f"{spec.name or spec.model_type} cannot be split so: {'; '.join(problems)} "
            f"(possible tensor_parallel: {possible})"
        )


def tensor_parallel_sizes(spec: ModelSpec, most: int, group_size: int | None = None) -> tuple[int, ...]:
    """Return the tensor-parallel sizes up to `most` that are possible for `spec` alone."""
    sizes = range(1, most + 1)
    return tuple(tp for tp in sizes if not layout_problems(spec, Layout(tensor_parallel=tp), group_size))


def kv_heads_per_rank(spec: ModelSpec, tensor_parallel: int) -> int:
    """Return how many KV heads one rank caches: divided while there are enough, repeated beyond.

    MLA's latent vector is one head and whole on every rank.
    """
    if spec.mla is not None:
        return 1
    return max(1, spec.num_key_value_heads // tensor_parallel)


def kv_replication(spec: ModelSpec, layout: Layout) -> float:
    """Return how often a replica's ranks together hold one request's KV: 1 when it is sharded without copies.

    Data-parallel attention does not copy a request, it gives it to one rank; repeated heads and MLA's latent
    are copies.
    """
    if spec.mla is not None:
        return float(layout.tensor_parallel)
    return layout.tensor_parallel * kv_heads_per_rank(spec, layout.tensor_parallel) / spec.num_key_value_heads


def layers_per_stage(spec: ModelSpec, pipeline_parallel: int) -> int:
    """Return the layers of the fullest pipeline stage."""
    return -(-spec.num_hidden_layers // pipeline_parallel)


def _tensor_problems(spec: ModelSpec, tp: int) -> Iterable[str]:
    heads, kv_heads, vocab = spec.num_attention_heads, spec.num_key_value_heads, padded_vocab(spec.vocab_size)
    if heads % tp:
        yield f"tensor_parallel {tp} does not divide {heads} attention heads"
    if spec.mla is None and kv_heads % tp and tp % kv_heads:
        yield f"tensor_parallel {tp} neither divides {kv_heads} KV heads nor is a multiple of them"
    if vocab % tp:
        yield f"tensor_parallel {tp} does not divide the padded vocabulary of {vocab:,}"
    linear = spec.linear_attention
    if linear is not None and (linear.num_key_heads % tp or linear.num_value_heads % tp):
        heads_text = f"{linear.num_key_heads} key and {linear.num_value_heads} value heads"
        yield f"tensor_parallel {tp} does not divide the linear-attention layers' {heads_text}"


def _width_problems(spec: ModelSpec, layout: Layout, group_size: int | None) -> Iterable[str]:
    tp, moe = layout.tensor_parallel, spec.moe
    widths: list[tuple[str, int, int]] = []
    if any(not spec.has_experts(layer) for layer in range(spec.num_hidden_layers)):
        widths.append(("intermediate_size", spec.intermediate_size, tp))
    if moe is not None:
        widths.append(("moe_intermediate_size", moe.moe_intermediate_size, layout.expert_tensor_parallel))
        if moe.shared_expert_intermediate_size:
            widths.append(("shared experts' width", moe.shared_expert_intermediate_size, tp))
    for name, width, ranks in widths:
        if width % ranks:
            yield f"{name} {width:,} does not divide among {ranks} ranks"
        elif group_size and width % group_size == 0 and (width // ranks) % group_size:
            yield f"{name} {width:,} among {ranks} ranks cuts weight groups of {group_size}"


def _pipeline_problems(spec: ModelSpec, pp: int) -> Iterable[str]:
    if pp > spec.num_hidden_layers:
        yield f"pipeline_parallel {pp} exceeds {spec.num_hidden_layers} layers"


def _expert_problems(spec: ModelSpec, layout: Layout) -> Iterable[str]:
    ep, ranks = layout.expert_parallel, layout.tensor_parallel * layout.data_parallel
    if ep == 1:
        return
    if spec.moe is None:
        yield f"expert_parallel {ep} needs a mixture of experts"
    elif spec.moe.num_experts % ep:
        yield f"expert_parallel {ep} does not divide {spec.moe.num_experts} experts"
    if ranks % ep:
        yield f"expert_parallel {ep} does not divide the {ranks} ranks of tensor × data parallelism"
