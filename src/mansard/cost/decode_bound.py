"""The simplest bound there is: a decode step reads its weights and its cache once, so it takes bytes ÷ bandwidth.

Good to a few percent for one stream on a CPU, where nothing else shows, and the definition of model bandwidth
utilization (MBU). What counts is bytes read per token: active experts, the tied head once more than the
embedding's single row, the cache of every sequence; never the number of parameters.

Source: Databricks, "LLM Inference Performance Engineering" (2023) for MBU; Pope et al. (arXiv 2211.05102).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.cost.formats import PrecisionPlan
from mansard.cost.kv_layout import sequence_bytes
from mansard.cost.memory import weight_bytes
from mansard.specs.model import ModelSpec


def decode_weight_bytes(spec: ModelSpec, plan: PrecisionPlan, batch_size: int = 1) -> float:
    """Return the weight bytes that one decode step of `batch_size` sequences reads.

    Of routed experts those that the batch touches, `E·(1 − (1 − k/E)^B)` in expectation; of an untied input
    embedding next to nothing; a tied one is the head.
    """
    parts = dict(weight_bytes(spec, plan))
    if not spec.tie_word_embeddings:
        parts["embedding"] = 0.0
    if spec.moe is not None:
        missed = (1.0 - spec.moe.num_experts_per_tok / spec.moe.num_experts) ** batch_size
        parts["experts"] *= 1.0 - missed
    return sum(parts.values())


def decode_bytes(spec: ModelSpec, plan: PrecisionPlan, batch_size: int = 1, context: int = 0) -> float:
    """Return the bytes that one decode step reads: weights once, and the cache of every sequence."""
    return decode_weight_bytes(spec, plan, batch_size) + batch_size * sequence_bytes(spec, context, plan.kv)


def decode_tokens_per_s(num_bytes: float, bytes_per_s: float, batch_size: int = 1) -> float:
    """Return the tokens per second of a step that reads `num_bytes` at `bytes_per_s` and nothing else."""
    return batch_size * bytes_per_s / num_bytes


def effective_bandwidth(points: Sequence[tuple[float, float]]) -> float:
    """Return the bandwidth behind measured (bytes read per token, tokens per second): the mean of their products.

    Units: bytes per second. Raises: ValueError without points.
    """
    if not points:
        raise ValueError("an effective bandwidth needs at least one measured (bytes, tokens per second)")
    return sum(num_bytes * rate for num_bytes, rate in points) / len(points)


def mbu(num_bytes: float, seconds: float, peak_bytes_per_s: float) -> float:
    """Return model bandwidth utilization: bytes that the step must read ÷ time ÷ peak bandwidth.

    Raises: ValueError above 105 %: then the bytes are wrong (all experts counted, GiB taken for GB, a cached
    model).
    """
    used = num_bytes / seconds / peak_bytes_per_s
    if used > 1.05:
        raise ValueError(
            f"MBU of {used:.0%} is impossible: {num_bytes / 1e9:.2f} GB in {seconds * 1e3:.2f} ms exceed "
            f"{peak_bytes_per_s / 1e9:.0f} GB/s (count only the bytes that a step reads)"
        )
    return used
