"""Arithmetic intensity: FLOPs per byte moved, to be held against a hardware's ridge point.

The number quoted for "attention of Llama 2" (62 operations per byte) belongs to a whole sequence of queries with the
score matrix written to memory; a decode step has one query and about one operation per byte. Both formulas are here, so
that they can be told apart.

Source: Baseten, "A guide to LLM inference and performance" (2023) for the first; Williams et al. (CACM 2009).
"""

from __future__ import annotations


def unfused_attention_intensity(num_tokens: int, head_dim: int, element_bytes: int = 2) -> float:
    """Return FLOP/byte of one head over all N queries at once, scores and probabilities going through memory.

    `(4·d·N² + 3·N²) / (2·e·(2·N² + 2·N·d))` with e bytes an element: prefill without FlashAttention.
    """
    n, d = float(num_tokens), float(head_dim)
    flops = 4.0 * d * n * n + 3.0 * n * n
    return flops / (element_bytes * (4.0 * n * n + 4.0 * n * d))


def decode_attention_intensity(num_tokens: int, head_dim: int, element_bytes: int = 2) -> float:
    """Return FLOP/byte of one head's decode step over N cached tokens: one query reads every key and value once.

    `(4·d·N + 3·N) / (e·(2·N·d + 4·N + 2·d))`; grouped queries multiply it by the heads that share a KV head.
    """
    n, d = float(num_tokens), float(head_dim)
    flops = 4.0 * d * n + 3.0 * n
    return flops / (element_bytes * (2.0 * n * d + 4.0 * n + 2.0 * d))
