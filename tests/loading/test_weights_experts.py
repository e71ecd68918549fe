"""Experts: every layout that checkpoints use becomes one stacked tensor, equal to transformers' own."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading.loading_samples import random_floats
from safetensors.numpy import save_file

from mansard.loading.ggml_encode import quantize
from mansard.loading.gguf_writer import write_gguf
from mansard.loading.stored import ModelFileError
from mansard.loading.weights import Weights

os.environ.setdefault("OMP_NUM_THREADS", "1")
MLP = "model.layers.0.mlp"
BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}


def saved(family: str, folder: Path, **more: Any) -> tuple[Weights, dict[str, np.ndarray]]:
    """Save a tiny random model with transformers; return our weights and its parameters in memory."""
    import torch
    import transformers

    config = getattr(transformers, f"{family}Config")(**BASE, **more)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return Weights.open(folder), {n: p.detach().numpy() for n, p in model.named_parameters()}


def check(weights: Weights, expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert weights.shape(name) == array.shape, name
        np.testing.assert_array_equal(weights.float32(name), array, err_msg=name)


@pytest.mark.parametrize(
    ("family", "more", "width"),
    [
        ("Mixtral", {"num_local_experts": 4}, 48),
        ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, 16),
        (
            "Qwen2Moe",
            {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 24,
            },
            16,
        ),
    ],
)
def test_one_tensor_an_expert(tmp_path: Path, family: str, more: dict[str, Any], width: int) -> None:
    weights, memory = saved(family, tmp_path, **more)
    gate_up = memory[f"{MLP}.experts.gate_up_proj"]
    check(
        weights,
        {
            f"{MLP}.experts.gate_proj.weight": gate_up[:, :width],
            f"{MLP}.experts.up_proj.weight": gate_up[:, width:],
            f"{MLP}.experts.down_proj.weight": memory[f"{MLP}.experts.down_proj"],
            f"{MLP}.router.weight": memory[f"{MLP}.gate.weight"],
        },
    )
    assert weights.num_parameters == sum(a.size for a in memory.values())
    assert not weights.unmapped
    if family == "Qwen2Moe":
        name = f"{MLP}.shared_expert_gate.weight"
        check(weights, {name: memory[name]})


def test_fused_experts_gate_first(tmp_path: Path) -> None:
    """transformers' layout in memory, [E, 2I, H] and [E, H, I], may be saved as it is."""
    rng = np.random.default_rng(0)
    gate_up, down = random_floats(rng, 3, 20, 16), random_floats(rng, 3, 16, 10)
    save_file(
        {f"{MLP}.experts.gate_up_proj": gate_up, f"{MLP}.experts.down_proj": down},
        tmp_path / "model.safetensors",
    )
    check(
        Weights.open(tmp_path),
        {
            f"{MLP}.experts.gate_proj.weight": gate_up[:, :10],
            f"{MLP}.experts.up_proj.weight": gate_up[:, 10:],
            f"{MLP}.experts.down_proj.weight": down,
        },
    )


def test_gpt_oss_dense(tmp_path: Path) -> None:
    """gpt-oss keeps [E, H, 2I] with gate and up interleaved, [E, I, H], and biases."""
    weights, memory = saved("GptOss", tmp_path, num_local_experts=4, num_experts_per_tok=2)
    fused, bias = memory[f"{MLP}.experts.gate_up_proj"], memory[f"{MLP}.experts.gate_up_proj_bias"]
    check(
        weights,
        {
            f"{MLP}.experts.gate_proj.weight": fused[:, :, 0::2].swapaxes(1, 2),
            f"{MLP}.experts.up_proj.weight": fused[:, :, 1::2].swapaxes(1, 2),
            f"{MLP}.experts.down_proj.weight": memory[f"{MLP}.experts.down_proj"].swapaxes(1, 2),
            f"{MLP}.experts.gate_proj.bias": bias[:, 0::2],
            f"{MLP}.experts.up_proj.bias": bias[:, 1::2],
            f"{MLP}.experts.down_proj.bias": memory[f"{MLP}.experts.down_proj_bias"],
            f"{MLP}.router.weight": memory[f"{MLP}.router.weight"],
            f"{MLP}.router.bias": memory[f"{MLP}.router.bias"],
            "model.layers.0.self_attn.sinks": memory["model.layers.0.self_attn.sinks"],
        },
    )
    assert weights.num_parameters == sum(a.size for a in memory.values())


def mxfp4_parts(rng: np.random.Generator, experts: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
    return blocks, rng.integers(110, 130, (experts, rows, columns // 32), dtype=np.uint8)


def test_gpt_oss_mxfp4_stays_mxfp4(tmp_path: Path) -> None:
    """Blocks and scales become ggml records of the same 17 bytes; values are those transformers decodes."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(1)
    arrays, decoded = {}, {}
    for part, rows, columns in (("gate_up_proj", 2 * 96, 64), ("down_proj", 64, 96)):
        blocks, scales = mxfp4_parts(rng, 2, rows, columns)
        arrays[f"{MLP}.experts.{part}_blocks"], arrays[f"{MLP}.experts.{part}_scales"] = blocks, scales
        values = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
        decoded[part] = values.numpy().swapaxes(1, 2)  # [E, rows, in]
    save_file(arrays, tmp_path / "model.safetensors")
    weights = Weights.open(tmp_path)
    check(
        weights,
        {
            f"{MLP}.experts.gate_proj.weight": decoded["gate_up_proj"][:, 0::2],
            f"{MLP}.experts.up_proj.weight": decoded["gate_up_proj"][:, 1::2],
            f"{MLP}.experts.down_proj.weight": decoded["down_proj"],
        },
    )
    assert {weights.format(n).name for n in weights.names()} == {"mxfp4"}
    assert weights.num_bytes == sum(a.nbytes for a in arrays.values())


@pytest.mark.parametrize("kind", ["fp16", "Q4_0"])
def test_gguf_experts_stacked_and_apart(tmp_path: Path, kind: str) -> None:
    """Old Mixtral GGUFs have a tensor an expert, new ones a stacked one; both give the same bytes."""
    stacked = random_floats(np.random.default_rng(2), 3, 8, 32)
    metadata = {"general.architecture": "llama", "llama.attention.head_count": 4}
    apart = [quantize(stacked[i], kind, f"blk.0.ffn_gate.{i}.weight") for i in (2, 0, 1)]
    together = [quantize(stacked, kind, "blk.0.ffn_gate_exps.weight")]
    name = f"{MLP}.experts.gate_proj.weight"
    first = Weights.open(write_gguf(tmp_path / "a.gguf", metadata, apart)).tensor(name)
    second = Weights.open(write_gguf(tmp_path / "b.gguf", metadata, together)).tensor(name)
    assert first.shape == second.shape == (3, 8, 32)
    np.testing.assert_array_equal(first.data, second.data)


def test_gguf_shared_expert_gate_is_a_matrix(tmp_path: Path) -> None:
    vector = random_floats(np.random.default_rng(3), 32)
    tensors = [quantize(vector, "fp32", "blk.0.ffn_gate_inp_shexp.weight")]
    weights = Weights.open(write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen2moe"}, tensors))
    check(weights, {f"{MLP}.shared_expert_gate.weight": vector[None]})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"experts.0.w1.weight": (4, 8), "experts.2.w1.weight": (4, 8)}, "they must be 0 to 1"),
        ({"experts.0.w1.weight": (4, 8), "experts.1.w1.weight": (8, 4)}, "must be alike"),
        ({"experts.gate_up_proj": (2, 8, 6)}, "lacks down_proj"),
        ({"experts.gate_up_proj": (2, 8, 6), "experts.down_proj": (2, 5, 8)}, "do not fit together"),
        ({"experts.gate_up_proj": (8, 6), "experts.down_proj": (3, 8)}, "three dimensions"),
        (
            {
                "experts.gate_up_proj": (2, 8, 6),
                "experts.down_proj": (2, 6, 4),
                "experts.gate_up_proj_bias": (8,),
                "experts.down_proj_bias": (2, 8),
            },
            "biases",
        ),
        (
            {"experts.gate_up_proj_blocks": (2, 8, 1, 16), "experts.gate_up_proj_scales": (2, 8, 1)},
            "lacks down",
        ),
        (
            {
                "experts.gate_up_proj_blocks": (2, 8, 1, 16),
                "experts.gate_up_proj_scales": (2, 8, 1),
                "experts.down_proj_blocks": (2, 32, 1, 16),
                "experts.down_proj_scales": (2, 32, 1),
            },
            "MXFP4",  # float32 where bytes are needed
        ),
    ],
)
def test_damaged_experts_are_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    arrays = {f"model.layers.0.block_sparse_moe.{n}": np.zeros(s, np.float32) for n, s in shapes.items()}
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        Weights.open(tmp_path)
