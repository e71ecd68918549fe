"""KvPool: how many tokens, blocks and requests a cache of so many bytes holds, as vLLM counts and prints them.

One kind of layer: blocks of `block_size` tokens. Hybrids: layers are packed in groups as large as the
smallest kind, each block belongs to one group, and a request needs blocks of every group: what sliding layers
save is paid back in padding and in the prefill budget that they must hold. The printed number of tokens is
then blocks ÷ groups × block size, and the printed concurrency is blocks ÷ blocks of one request.

Source: vLLM 0.19 `kv_cache_utils` and its logs (jgchn/llm-d-planner); see the cases in
tests/cost/test_cases_group_a.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.cost.kv_layout import LayerGroup, layer_groups
from mansard.specs.model import ModelSpec

SIMILAR = 1.25  # kinds of nearly equal size are padded to the larger instead of split (vLLM)


@dataclass(frozen=True, slots=True)
class KvPool:
    """How a cache is divided.

    `num_groups` block tables a request has; `padding` the share of layer slots without a layer. `block_bytes`
    is that of one block of one group on one rank; `blocks_per_request` at the context limit; `num_tokens` as
    printed.
    """

    num_blocks: int
    num_tokens: int
    max_concurrency: float
    block_size: int
    block_bytes: float
    num_groups: int
    blocks_per_request: int
    padding: float


@dataclass(frozen=True, slots=True)
class KvPacking:
    """How layers share blocks: `group_size` layer slots a block, and how many groups of each kind."""

    group_size: int
    groups: tuple[tuple[LayerGroup, int], ...]  # (kind, number of groups)
    block_size: int
    block_bytes: float

    @property
    def num_groups(self) -> int:
        """Return the block tables that every request has."""
        return sum(count for _, count in self.groups)

    @property
    def padding(self) -> float:
        """Return the share of layer slots that hold no layer."""
        layers = sum(group.num_layers for group, _ in self.groups)
        return self.group_size * self.num_groups / layers - 1.0

    def blocks_for(self, num_tokens: int, num_batched_tokens: int, num_draft_tokens: int = 0) -> int:
        """Return the blocks that one request of `num_tokens` may need at most."""
        return sum(
            count * _group_blocks(group, self.block_size, num_tokens, num_batched_tokens, num_draft_tokens)
            for group, count in self.groups
        )


def pack(groups: tuple[LayerGroup, ...], block_size: int = 16) -> KvPacking:
    """Divide layers into groups of equal size and find the block that serves them all.

    With linear layers a block is made long enough in tokens for one state to fit in it.
    """
    counts = [group.num_layers for group in groups]
    smallest, largest = min(counts), max(counts)
    size = largest if largest < smallest * SIMILAR else smallest
    token_bytes = max(group.token_bytes for group in groups)
    state = max(group.state_bytes for group in groups)
    if state and token_bytes:
        block_size = max(block_size, -(-math.ceil(state / token_bytes) // block_size) * block_size)
    page = max(token_bytes * block_size, state)
    numbers = tuple((group, -(-group.num_layers // size)) for group in groups)
    return KvPacking(size, numbers, block_size, size * page)


@dataclass(frozen=True, slots=True)
class KvSettings:
    """How an engine keeps its cache: format, split, block, and the most tokens one step adds.

    `num_nextn_layers` draft layers keep a cache of their own; `num_draft_tokens` more states per linear
    layer.
    """

    kv_format: str = "bf16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    block_size: int = 16
    num_batched_tokens: int = 8192
    num_nextn_layers: int = 0
    num_draft_tokens: int = 0


DEFAULT_SETTINGS = KvSettings()


def kv_packing(spec: ModelSpec, settings: KvSettings = DEFAULT_SETTINGS) -> KvPacking:
    """Return how the layers of `spec` share blocks on one rank of a single pipeline stage."""
    groups = layer_groups(spec, settings.kv_format, settings.tensor_parallel, settings.num_nextn_layers)
    return pack(groups, settings.block_size)


def kv_pool(spec: ModelSpec, pool_bytes: float, max_model_len: int, settings: KvSettings = DEFAULT_SETTINGS) -> KvPool:
    """Return what a cache of `pool_bytes` on one rank holds.

    Units: bytes of one rank. A pipeline stage holds its share of the layers.
    """
    packing = kv_packing(spec, settings)
    stage_bytes = packing.block_bytes / settings.pipeline_parallel
    num_blocks = max(0, int(pool_bytes // stage_bytes))
    need = packing.blocks_for(max_model_len, settings.num_batched_tokens, settings.num_draft_tokens)
    concurrency = num_blocks / need
    linear = any(group.kind == "linear" for group, _ in packing.groups)
    printed = num_blocks // packing.num_groups * packing.block_size
    return KvPool(
        num_blocks=num_blocks,
        num_tokens=int(concurrency * max_model_len) if linear else printed,
        max_concurrency=concurrency,
        block_size=packing.block_size,
        block_bytes=stage_bytes,
        num_groups=packing.num_groups,
        blocks_per_request=need,
        padding=packing.padding,
    )


def longest_model_len(spec: ModelSpec, pool_bytes: float, settings: KvSettings = DEFAULT_SETTINGS) -> int:
    """Return the longest context of which one request fits in `pool_bytes` on one rank; 0 when none does."""
    packing = kv_packing(spec, settings)
    num_blocks = int(pool_bytes * settings.pipeline_parallel // packing.block_bytes)
    low, high = 0, max(num_blocks * packing.block_size, spec.max_position_embeddings)
    while low < high:  # blocks_for grows with the length
        middle = (low + high + 1) // 2
        need = packing.blocks_for(middle, settings.num_batched_tokens, settings.num_draft_tokens)
        low, high = (middle, high) if need <= num_blocks else (low, middle - 1)
    return low


def request_bytes(spec: ModelSpec, num_tokens: int, settings: KvSettings = DEFAULT_SETTINGS) -> float:
    """Return what an allocator of blocks takes on one rank for one request of `num_tokens`. Units: bytes."""
    packing = kv_packing(spec, settings)
    blocks = packing.blocks_for(num_tokens, settings.num_batched_tokens, settings.num_draft_tokens)
    return blocks * packing.block_bytes / settings.pipeline_parallel


def _group_blocks(group: LayerGroup, block_size: int, tokens: int, budget: int, drafts: int) -> int:
    """Return the blocks of one group for one request: the window and a step's tokens for sliding layers."""
    if group.kind == "linear":
        return 1 + drafts
    if group.reach is None:
        return -(-tokens // block_size)
    if group.kind == "chunked":
        return -(-min(group.reach + budget, tokens) // block_size)
    return -(-min(group.reach - 1 + budget, tokens) // block_size) + 1
