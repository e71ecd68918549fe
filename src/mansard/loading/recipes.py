"""Recipes: how a canonical weight comes from the tensors of a file, as a re-ordering of raw bytes.

A recipe knows its format and shape before anything is read, so a model can be described without touching its
weights. `build` returns the bytes: a view where the file's order is already right, else one copy. Nothing is
ever expanded: quantized rows are moved whole.

Source: the llama.cpp converter's q/k permutation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mansard.loading.stored import Bytes, StoredTensor
from mansard.specs.precision import NumberFormat


@dataclass(frozen=True, slots=True)
class Recipe:
    """The format and shape of a canonical weight, the stored tensors it needs and the way to its bytes."""

    format: NumberFormat
    shape: tuple[int, ...]
    sources: tuple[StoredTensor, ...]
    build: Callable[[], Bytes]


def as_stored(tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> Recipe:
    """Take `tensor` as it is (under another `shape` of as many elements); no copy."""
    return Recipe(tensor.format, shape or tensor.shape, (tensor,), lambda: tensor.data)


def unpermuted(tensor: StoredTensor, num_heads: int) -> Recipe:
    """Undo the row order of a `llama` GGUF's q or k: within a head, row 2i + j goes to row j · D/2 + i.

    Shapes: `tensor` [num_heads · D, in], or [num_heads · D] for a bias.
    Raises: ValueError when the rows are not `num_heads` even heads.
    """
    num_rows = tensor.shape[0]
    if num_heads < 1 or num_rows % (2 * num_heads):
        raise ValueError(f"{tensor.name} has {num_rows} rows, which are not {num_heads} heads of an even size")

    def build() -> Bytes:
        halves = num_rows // num_heads // 2
        rows = tensor.data.reshape(num_heads, halves, 2, -1)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    return Recipe(tensor.format, tensor.shape, (tensor,), build)
