"""Recipes for mixtures of experts: one stacked tensor [E, out, in] from whatever a checkpoint keeps.

Checkpoints hold a tensor an expert (Mixtral, Qwen-MoE), gate and up fused one after the other (transformers'
own layout), or interleaved and transposed, dense or in MXFP4 (gpt-oss).

Sources: transformers' Mixtral, Qwen3-MoE and gpt-oss modules; OCP Microscaling v1.0 (MXFP4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mansard.loading.recipes import Recipe, as_stored
from mansard.loading.stored import Bytes, StoredTensor
from mansard.specs.precision import number_format

MXFP4 = number_format("mxfp4")


def stacked(tensors: Sequence[StoredTensor]) -> Recipe:
    """Stack one tensor an expert: [out, in] each → [E, out, in].

    Raises: ValueError when they differ in shape or format.
    """
    first = tensors[0]
    for other in tensors:
        if other.shape != first.shape or other.format != first.format:
            raise ValueError(
                f"{other.name} is {other.format.name} {other.shape} but {first.name} is {first.format.name} "
                f"{first.shape}; all experts of a layer must be alike"
            )
    shape = (len(tensors), *first.shape)
    return Recipe(first.format, shape, tuple(tensors), lambda: np.concatenate([t.data for t in tensors]))


def expert_rows(tensor: StoredTensor, rows: slice, transposed: bool = False) -> Recipe:
    """Take some of each expert's rows: gate or up out of a fused tensor.

    Shapes: `tensor` [E, rows, in] or, `transposed`, [E, in, rows]; a bias is [E, rows]. Dense formats when
    transposed.
    """
    axis = 2 if transposed else 1
    taken = len(range(*rows.indices(tensor.shape[axis])))
    shape = (tensor.shape[0], taken, *(tensor.shape[1:2] if transposed else tensor.shape[2:]))

    def build() -> Bytes:
        if transposed:
            grid = tensor.data.reshape(*tensor.shape, -1)
            items = grid.view(f"u{grid.shape[-1]}")[..., 0]
            chosen = np.ascontiguousarray(items[:, :, rows].swapaxes(1, 2))
            return chosen.reshape(-1).view(np.uint8)
        by_row = tensor.data.reshape(tensor.shape[0], tensor.shape[1], -1)
        return np.ascontiguousarray(by_row[:, rows]).reshape(-1)

    return Recipe(tensor.format, shape, (tensor,), build)


def mxfp4_rows(blocks: StoredTensor, scales: StoredTensor, rows: slice) -> Recipe:
    """Join gpt-oss's MXFP4 blocks and scales into ggml's MXFP4 records for some of each expert's rows.

    Shapes: `blocks` [E, rows, in / 32, 16] u8, `scales` [E, rows, in / 32] u8; result [E, taken, in]. A
    stored byte holds neighbours (elements 2j and 2j + 1); a record's byte holds elements j and j + 16.
    Raises: ValueError when the two do not fit together.
    """
    shaped = len(blocks.shape) == 4 and blocks.shape[3] == 16 and blocks.shape[:3] == scales.shape
    if not shaped or {blocks.format.name, scales.format.name} != {"U8"}:
        raise ValueError(
            f"{blocks.name} {blocks.shape} and {scales.name} {scales.shape} are not MXFP4; "
            "[E, rows, in/32, 16] and [E, rows, in/32] of U8 are needed"
        )
    num_experts, num_rows, num_groups, _ = blocks.shape
    taken = len(range(*rows.indices(num_rows)))

    def build() -> Bytes:
        pairs = blocks.data.reshape(blocks.shape)[:, rows]
        records = np.empty((num_experts, taken, num_groups, MXFP4.block_bytes), np.uint8)
        records[..., 0] = scales.data.reshape(scales.shape)[:, rows]
        low, high = pairs & np.uint8(15), pairs >> np.uint8(4)
        records[..., 1::2] = low[..., :8] | (low[..., 8:] << np.uint8(4))
        records[..., 2::2] = high[..., :8] | (high[..., 8:] << np.uint8(4))
        return records.reshape(-1)

    return Recipe(MXFP4, (num_experts, taken, num_groups * 32), (blocks, scales), build)


def fused_experts(prefix: str, parts: Mapping[str, StoredTensor]) -> dict[str, Recipe]:
    """Split fused gate and up: MXFP4 and transposed ones are interleaved (gpt-oss), others are gate, then up.

    `parts` are the tensors under `prefix`, by what follows it. Raises: ValueError when they do not fit
    together.
    """
    _require(prefix, parts)
    recipes: dict[str, Recipe] = {}
    even, odd, every = slice(0, None, 2), slice(1, None, 2), slice(None)
    if "gate_up_proj_blocks" in parts:
        blocks, scales = parts["gate_up_proj_blocks"], parts["gate_up_proj_scales"]
        recipes[f"{prefix}.gate_proj.weight"] = mxfp4_rows(blocks, scales, even)
        recipes[f"{prefix}.up_proj.weight"] = mxfp4_rows(blocks, scales, odd)
        down = mxfp4_rows(parts["down_proj_blocks"], parts["down_proj_scales"], every)
        recipes[f"{prefix}.down_proj.weight"] = down
    else:
        recipes |= _fused_dense(prefix, parts["gate_up_proj"], parts["down_proj"])
    if "gate_up_proj_bias" in parts:
        if len(parts["gate_up_proj_bias"].shape) != 2 or len(parts["down_proj_bias"].shape) != 2:
            raise ValueError(f"{prefix}: the experts' biases must have two dimensions")
        recipes[f"{prefix}.gate_proj.bias"] = expert_rows(parts["gate_up_proj_bias"], even)
        recipes[f"{prefix}.up_proj.bias"] = expert_rows(parts["gate_up_proj_bias"], odd)
        recipes[f"{prefix}.down_proj.bias"] = as_stored(parts["down_proj_bias"])
    return recipes


def _fused_dense(prefix: str, gate_up: StoredTensor, down: StoredTensor) -> dict[str, Recipe]:
    """Split dense fused tensors; shapes tell [E, 2I, H] + [E, H, I] from [E, H, 2I] + [E, I, H]."""
    even, odd, every = slice(0, None, 2), slice(1, None, 2), slice(None)
    if len(gate_up.shape) != 3 or len(down.shape) != 3:
        raise ValueError(f"{gate_up.name} {gate_up.shape} and {down.name} {down.shape} must have three dimensions")
    if gate_up.shape[1] == 2 * down.shape[2] and gate_up.shape[2] == down.shape[1]:
        width = down.shape[2]
        gate, up = expert_rows(gate_up, slice(0, width)), expert_rows(gate_up, slice(width, None))
        turned = as_stored(down)
    elif gate_up.shape[1] == down.shape[2] and gate_up.shape[2] == 2 * down.shape[1]:
        gate, up = expert_rows(gate_up, even, transposed=True), expert_rows(gate_up, odd, transposed=True)
        turned = expert_rows(down, every, transposed=True)
    else:
        raise ValueError(f"{gate_up.name} {gate_up.shape} and {down.name} {down.shape} do not fit together")
    return {
        f"{prefix}.gate_proj.weight": gate,
        f"{prefix}.up_proj.weight": up,
        f"{prefix}.down_proj.weight": turned,
    }


def _require(prefix: str, parts: Mapping[str, StoredTensor]) -> None:
    """Refuse a fused layer that lacks a part."""
    ending = "_blocks" if "gate_up_proj_blocks" in parts else ""
    needed = [f"gate_up_proj{ending}", f"down_proj{ending}"]
    needed += ["gate_up_proj_scales", "down_proj_scales"] if ending else []
    needed += ["gate_up_proj_bias", "down_proj_bias"] if any(p.endswith("_bias") for p in parts) else []
    if missing := [n for n in needed if n not in parts]:
        raise ValueError(f"{prefix} lacks {', '.join(missing)}")
