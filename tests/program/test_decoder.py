"""The builder's ops: their order, their fusions, and what tensor parallelism does to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.program.decoder import decoder
from mansard.program.ops import (
    AllGather,
    AllReduce,
    Attention,
    Embed,
    LatentAttention,
    Linear,
    LinearAttention,
    Logits,
    MoE,
    Op,
    Program,
    RmsNorm,
    RopeAndCache,
    SigmoidGate,
)
from mansard.specs.hf_config import from_hf
from mansard.specs.model import ModelSpec

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 100,
}
T = TypeVar("T", bound=Op)


def spec_of(model_type: str, **settings: Any) -> ModelSpec:
    return from_hf({"model_type": model_type, **SIZES, **settings})


def only(program: Program, kind: type[T]) -> list[T]:
    return [op for op in program.ops if isinstance(op, kind)]


def names(ops: Iterable[Op]) -> list[str]:
    return [type(op).__name__ for op in ops]


def test_llama_layer() -> None:
    program = decoder(spec_of("llama"))
    layer = [op for op, index in zip(program.ops, program.layers, strict=True) if index == 1]
    assert names(layer) == [
        "RmsNorm", "Linear", "RopeAndCache", "Attention", "Linear",
        "RmsNorm", "Linear", "GatedActivation", "Linear",
    ]  # fmt: skip
    assert names(program.ops[:1]) == ["Embed"] and names(program.ops[-2:]) == ["RmsNorm", "Logits"]
    qkv, o_proj, gate_up, down = (op for op in layer if isinstance(op, Linear))
    assert qkv.out_features == (64, 32, 32) and qkv.weights[2] == "model.layers.1.self_attn.v_proj.weight"
    assert gate_up.out_features == (96, 96) and not gate_up.add_to_output
    assert o_proj.add_to_output and down.add_to_output and o_proj.output == down.output == "x"
    assert program.num_cache_layers == 2 and [op.cache_layer for op in only(program, Attention)] == [0, 1]


def test_fused_checkpoints_name_their_fused_weights() -> None:
    qkv, _, gate_up, _ = only(decoder(spec_of("phi3", num_hidden_layers=1)), Linear)
    assert qkv.weights == ("model.layers.0.self_attn.qkv_proj.weight",) and qkv.out_features == (128,)
    assert gate_up.weights == ("model.layers.0.mlp.gate_up_proj.weight",) and gate_up.out_features == (192,)


def test_gemma_adds_the_residual_after_its_norms() -> None:
    program = decoder(spec_of("gemma3", head_dim=16, num_hidden_layers=6))
    assert not any(op.add_to_output for op in only(program, Linear))
    adding = [op for op in only(program, RmsNorm) if op.add_to_output]
    assert len(adding) == 12 and all(op.output == "x" and op.unit_offset for op in adding)
    windows = [op.window for op in only(program, Attention)]
    assert windows == [4096] * 5 + [None]
    assert [op.rope.theta for op in only(program, RopeAndCache)] == [1e4] * 5 + [1e6]
    assert program.ops[0] == Embed("x", "model.embed_tokens.weight", 100, 64, 8.0)
    assert only(program, Logits)[0].weight == "model.embed_tokens.weight"  # tied


def test_biases_and_sinks_and_experts_of_gpt_oss() -> None:
    program = decoder(spec_of("gpt_oss", num_hidden_layers=1, num_local_experts=4))
    qkv, o_proj = only(program, Linear)
    assert len(qkv.biases) == 3 and o_proj.biases == ("model.layers.0.self_attn.o_proj.bias",)
    assert only(program, Attention)[0].sinks == "model.layers.0.self_attn.sinks"
    moe = only(program, MoE)[0]
    assert moe.activation == "swiglu_oai" and moe.limit == 7.0 and moe.scoring == "softmax_after_topk"
    assert moe.router_bias == "model.layers.0.mlp.router.bias" and moe.add_to_output


def test_gated_shared_experts_of_qwen2_moe() -> None:
    program = decoder(spec_of("qwen2_moe", num_hidden_layers=1, shared_expert_intermediate_size=40))
    gate = only(program, SigmoidGate)[0]
    assert gate == SigmoidGate("shared", "gate", "x", 64, 1, True)
    assert any(op.weights == ("model.layers.0.mlp.shared_expert_gate.weight",) for op in only(program, Linear))


def test_latent_and_linear_attention_have_programs() -> None:
    deepseek = decoder(spec_of("deepseek_v3", num_hidden_layers=4))
    assert len(only(deepseek, LatentAttention)) == deepseek.num_cache_layers == 4
    assert len(only(deepseek, MoE)) == 1  # the first three layers are dense
    qwen = decoder(spec_of("qwen3_next", num_hidden_layers=4))
    assert len(only(qwen, LinearAttention)) == 3 and qwen.num_cache_layers == 1
    assert only(qwen, SigmoidGate)[-2] == SigmoidGate("attention", "gate", "attention", 2048, 2048)


def test_tensor_parallel_divides_heads_and_widths() -> None:
    program = decoder(spec_of("llama"), tensor_parallel=4)
    qkv, o_proj, gate_up, down = only(program, Linear)[:4]
    assert qkv.out_features == (16, 8, 8) and qkv.parallel == "column"
    assert o_proj.in_features == 16 and o_proj.parallel == "row" and not o_proj.add_to_output
    assert gate_up.out_features == (24, 24) and down.in_features == 24
    reduces = only(program, AllReduce)
    assert reduces[0] == AllReduce("x", 64, 4)  # the embedding's rows are divided
    assert reduces[1:] == [AllReduce("out", 64, 4, "x")] * 4
    assert only(program, Logits)[0].vocab_size == 25
    assert program.ops[-1] == AllGather("logits", 25, 4)


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    program = decoder(spec_of("llama"), tensor_parallel=8)
    assert only(program, Attention)[0].num_heads == only(program, Attention)[0].num_kv_heads == 1


@pytest.mark.parametrize(
    ("degree", "change", "message"),
    [
        (0, {}, "tensor_parallel is 0"),
        (3, {}, "tensor_parallel 3 does not divide attention heads = 8"),
        (8, {"intermediate_size": 100}, "tensor_parallel 8 does not divide intermediate_size = 100"),
        (4, {"num_attention_heads": 12, "num_key_value_heads": 6}, "neither divides 6 KV heads"),
    ],
)
def test_illegal_degrees_are_refused(degree: int, change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder(replace(spec_of("llama"), **change), tensor_parallel=degree)


def test_gemma_reduces_before_its_norms() -> None:
    program = decoder(spec_of("gemma2", head_dim=16), tensor_parallel=2)
    index = next(i for i, op in enumerate(program.ops) if isinstance(op, AllReduce) and op.register == "out")
    after = program.ops[index + 1]
    assert program.ops[index] == AllReduce("out", 64, 2) and isinstance(after, RmsNorm) and after.add_to_output


@given(
    st.sampled_from(["llama", "gemma3", "qwen2_moe", "mixtral", "gpt_oss", "phi3", "deepseek_v3", "qwen3_next"]),
    st.sampled_from([1, 2, 4]),
)
def test_registers_are_written_before_they_are_read(model_type: str, degree: int) -> None:
    """Each op finds its inputs, and an op that adds finds what it adds to."""
    program = decoder(spec_of(model_type, num_hidden_layers=4, head_dim=16), tensor_parallel=degree)
    written: set[str] = set()
    for op in program.ops:
        reads = {getattr(op, field) for field in ("input", "qkv", "gate", "register") if hasattr(op, field)}
        if isinstance(op, MoE):
            reads = {op.input}
        if isinstance(op, RopeAndCache | Attention):
            reads = {op.qkv}
        if getattr(op, "add_to_output", False):
            reads.add(op.output)  # type: ignore[union-attr]
        assert reads <= written, f"{op} reads {reads - written}"
        written.add("logits" if isinstance(op, Logits) else getattr(op, "output", next(iter(reads), "")))
    assert "logits" in written
