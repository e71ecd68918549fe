"""How much of a reserved cache is never used: contiguous reservation at the longest length against blocks on demand.

A request's cache grows from its prompt to prompt + output while it lives. Reserving the longest possible
length at once leaves the rest empty; blocks leave on average half a block empty. Kwon et al. (PagedAttention,
SOSP 2023) measured 20 to 38 % used before and under 4 % wasted after; here both follow from a workload's
lengths.

Also: what "context" and "slots" mean where a server reserves slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mansard.specs.lengths import LengthDistribution

GRID = 48  # quantiles of each distribution that are combined
Slots = Literal["multiply", "divide", "unified"]


def contiguous_waste(prompt: LengthDistribution, output: LengthDistribution, max_model_len: int) -> float:
    """Return the share of contiguous, longest-length reservations that holds no token, averaged over time.

    Lengths beyond `max_model_len` are clipped to it.
    """
    used = reserved = 0.0
    for start, steps in _requests(prompt, output, max_model_len):
        used += steps * (start + steps / 2.0)
        reserved += steps * max_model_len
    return 1.0 - used / reserved


def paged_waste(
    prompt: LengthDistribution, output: LengthDistribution, max_model_len: int, block_size: int = 16
) -> float:
    """Return the share of allocated blocks' tokens that is empty, averaged over time: the last block's rest."""
    used = allocated = 0.0
    for start, steps in _requests(prompt, output, max_model_len):
        mean = start + steps / 2.0
        used += steps * mean
        allocated += steps * (mean + (block_size - 1) / 2.0)
    return 1.0 - used / allocated


def _requests(
    prompt: LengthDistribution, output: LengthDistribution, max_model_len: int
) -> Iterator[tuple[float, float]]:
    """Yield (prompt tokens, output tokens) of equally likely requests that fit."""
    for start in prompt.grid(GRID):
        for steps in output.grid(GRID):
            kept = min(start, max_model_len - 1.0)
            yield kept, max(1.0, min(steps, max_model_len - kept))


def slot_tokens(context: int, slots: int, convention: Slots) -> tuple[int, int]:
    """Return (tokens of KV in all, tokens one request may use) for a server with reserved slots.

    "multiply": `context` is per request and each slot reserves it (Ollama). "divide": `context` is the total,
    split among slots (llama.cpp). "unified": the total is shared, and one request may take all of it
    (llama.cpp --kv-unified). Raises: ValueError for less than one token a slot.
    """
    if context < 1 or slots < 1 or (convention == "divide" and context < slots):
        raise ValueError(f"{context} tokens of context for {slots} slots: each slot needs at least one token")
    if convention == "multiply":
        return context * slots, context
    return context, context // slots if convention == "divide" else context
