"""The native KV cache: its formats, its exact size and how much of the memory it takes.

Blocks hold 16 tokens, one for each lane of a vector register. Pages come into being when they are written, so a
generous cache costs an idle server nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.program.ops import Program, RopeAndCache

NATIVE_BLOCK_SIZE = 16
LANES = 16
_SHARE_OF_MEMORY = 0.4

# What a user may write, and what the native executor calls it. "auto" is f16: values beyond its range saturate, and
# it keeps three more bits than bf16.
KV_DTYPES = {
    "auto": "f16",
    "f32": "f32",
    "fp32": "f32",
    "float32": "f32",
    "f16": "f16",
    "fp16": "f16",
    "float16": "f16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "int8": "int8",
    "int4": "int4",
}
_SCALE_BYTES = {"int8": 4, "int4": 8}  # a float scale for each token and head; int4: and a minimum
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "int4": 4}


def block_bytes(program: Program, kv_dtype: str) -> int:
    """Return the bytes of one block over all layers: keys, values and their scales.

    The head dimension is padded to whole vector registers.
    """
    total = 0
    for op in program.ops:
        if isinstance(op, RopeAndCache):
            dim = -(-op.head_dim // LANES) * LANES
            token_bytes = dim * _BITS[kv_dtype] // 8 + _SCALE_BYTES.get(kv_dtype, 0)
            total += 2 * op.num_kv_heads * NATIVE_BLOCK_SIZE * token_bytes
    return total


@dataclass(frozen=True, slots=True)
class KvSizing:
    """The KV cache as it will be built."""

    kv_dtype: str
    num_blocks: int
    max_model_len: int

    @staticmethod
    def choose(
        *,
        bytes_per_block: int,
        block_size: int,
        kv_dtype: str,
        context: int,
        max_model_len: int | None,
        num_blocks: int | None,
        kv_cache_bytes: int | None,
        max_num_seqs: int,
        available_bytes: int,
    ) -> KvSizing:
        """Take the blocks asked for, or as many as the bytes asked for hold, or a share of the free memory.

        No more are taken than all sequences at full length fill. Without `max_model_len` the longest sequence is the
        model's context, or what the cache holds when that is less.

        Raises: ValueError when a block does not have 16 tokens, or one sequence of `max_model_len` does not fit.
        """
        if block_size != NATIVE_BLOCK_SIZE:
            raise ValueError(
                f"block_size is {block_size}; the native executor's blocks hold {NATIVE_BLOCK_SIZE} tokens"
            )
        wanted = max_model_len or context
        if num_blocks is None:
            budget = int(available_bytes * _SHARE_OF_MEMORY) if kv_cache_bytes is None else kv_cache_bytes
            num_blocks = min(budget // bytes_per_block, max_num_seqs * -(-wanted // block_size))
        room = num_blocks * block_size
        if room < 1 or (max_model_len is not None and room < max_model_len):
            need = -(-wanted // block_size) * bytes_per_block
            raise ValueError(
                f"the KV cache holds {room:,} tokens ({num_blocks * bytes_per_block / 2**30:.2f} GiB); one sequence "
                f"of {wanted:,} needs {need / 2**30:.2f} GiB (lower --max-model-len, raise --kv-cache-memory or "
                "choose --kv-dtype int8)"
            )
        return KvSizing(kv_dtype, num_blocks, min(wanted, room))
