"""Every op of the native executor against the reference interpreter, on every kernel set.

Both run the same program on the same plans in float32; tolerances are a few float32 steps of the values involved, and
say so where they are more.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import BLOCK, Probe, isas, part, rows_plan, run, same_bits, stored

from mansard.core.types import StepPlan
from mansard.program.ops import Attention, GatedActivation, Linear, MoE, Op, RmsNorm, RopeAndCache, SigmoidGate
from mansard.specs.model import RopeSpec

NO_ROPE = RopeSpec(kind="none")
# Scores and outputs are of order one to four; the vector exp and tanh are good to a few float32 steps.
ATTENTION_TOLERANCE = 2e-5


def normals(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(size)


def compare(
    probe: Probe, plans: list[StepPlan], atol: float, rtol: float = 0.0, kv: str = "fp32", **changes: Any
) -> None:
    """Run the plans one after the other on both and compare every row."""
    names = {"fp32": "f32", "fp16": "f16"}
    executor = probe.native(kv_dtype=names.get(kv, kv), **changes)
    reference = probe.reference(kv_format=kv, num_blocks=changes.get("num_blocks", 24))
    for plan in plans:
        expected = np.concatenate(reference.logits(plan))
        np.testing.assert_allclose(run(executor, plan), expected, atol=atol, rtol=rtol)


def on_rows(op: Op | list[Op], inputs: dict[str, np.ndarray], output: str, width: int, **weights: Any) -> Probe:
    return Probe(op if isinstance(op, list) else [op], inputs, output, width, weights)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 250, 576])
@pytest.mark.parametrize(("unit_offset", "add"), [(False, False), (True, True)])
def test_rms_norm(size: int, unit_offset: bool, add: bool, isa: str) -> None:
    op = RmsNorm("x", "y", "weight", size, 1e-5, unit_offset, add)
    inputs = {"x": normals(20, size, size=3.0), "y": normals(20, size, seed=1)}
    probe = on_rows(op, inputs, "y", size, weight=normals(size, seed=2))
    compare(probe, [rows_plan(20)], atol=1e-5, isa=isa)


def test_rms_norm_in_place() -> None:
    probe = on_rows(RmsNorm("x", "x", "weight", 40, 1e-5), {"x": normals(20, 40)}, "x", 40, weight=normals(40, seed=2))
    compare(probe, [rows_plan(20)], atol=1e-5)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
@pytest.mark.parametrize("size", [5, 48, 600])
def test_gated_activation(activation: Any, size: int, isa: str) -> None:
    """Values out to ±40 reach both tails of each function; errors are relative there."""
    x = np.concatenate([np.linspace(-40, 40, 20 * size, dtype=np.float32).reshape(20, size), normals(20, size)], axis=1)
    for gated, inputs in ((True, x), (False, x[:, :size])):
        probe = on_rows(GatedActivation("x", "y", size, activation, gated), {"x": inputs}, "y", size)
        compare(probe, [rows_plan(20)], atol=2e-5, rtol=5e-6, isa=isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("limit", [None, 7.0])
def test_gpt_oss_activation_is_clamped(limit: float | None, isa: str) -> None:
    op = GatedActivation("x", "y", 50, "swiglu_oai", True, limit)
    compare(on_rows(op, {"x": normals(20, 100, size=8.0)}, "y", 50), [rows_plan(20)], atol=2e-5, rtol=5e-6, isa=isa)


@pytest.mark.parametrize("gate_size", [1, 50])
@pytest.mark.parametrize("add", [False, True])
def test_sigmoid_gate(gate_size: int, add: bool) -> None:
    op = SigmoidGate("x", "gate", "y", 50, gate_size, add)
    inputs = {"x": normals(20, 50), "gate": normals(20, gate_size, seed=1, size=20.0), "y": normals(20, 50, seed=2)}
    compare(on_rows(op, inputs, "y", 50), [rows_plan(20)], atol=2e-6)


ROPES = {
    "default": RopeSpec(),
    "partial": RopeSpec(rotary_dim=12),
    "linear": RopeSpec(kind="linear", factor=4.0),
    "llama3": RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_max_position_embeddings=64),
    "yarn": RopeSpec(kind="yarn", factor=4.0, original_max_position_embeddings=64),
    "longrope": RopeSpec(
        kind="longrope",
        rotary_dim=8,
        factor=4.0,
        original_max_position_embeddings=64,
        short_factor=(1.0, 1.1, 1.3, 1.6),
        long_factor=(1.0, 2.0, 4.0, 8.0),
    ),
}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("norms", [False, True])
def test_rope(kind: str, norms: bool, isa: str) -> None:
    """Angles are float32 products here and exact in the reference: up to 250 · 2⁻²⁴ radians apart."""
    names = ("q_norm", "k_norm") if norms else (None, None)
    op = RopeAndCache("x", 0, 6, 2, 24, ROPES[kind], 256, *names, norm_unit_offset=norms)
    weights = {"q_norm": normals(24, seed=2, size=0.3), "k_norm": normals(24, seed=3, size=0.3)} if norms else {}
    probe = on_rows(op, {"x": normals(60, 10 * 24)}, "x", 10 * 24, **weights)
    far = StepPlan((part("a", 196, range(60), range(16)),))
    compare(probe, [rows_plan(60), far], atol=1e-4, isa=isa)


def attention_probe(
    heads: int, kv_heads: int, dim: int, tokens: int = 48, size: float = 1.5, sinks: bool = False, **options: Any
) -> Probe:
    """Return RopeAndCache (without rotation) and Attention over random q, k and v; row t has its own."""
    width = (heads + 2 * kv_heads) * dim
    weights = {"sinks": normals(heads, seed=9)} if sinks else {}
    ops = [
        RopeAndCache("x", 0, heads, kv_heads, dim, NO_ROPE, 1024),
        Attention("x", "y", 0, heads, kv_heads, dim, dim**-0.5, sinks="sinks" if sinks else None, **options),
    ]
    return on_rows(ops, {"x": normals(tokens, width, size=size)}, "y", heads * dim, **weights)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "chunk": {"chunk": 20},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "all": {"window": 19, "softcap": 3.0, "sinks": True},
}
HEADS = [(4, 4, 8), (6, 2, 24), (8, 1, 40), (4, 2, 64), (3, 1, 80), (2, 1, 128), (2, 2, 256), (5, 5, 2), (32, 1, 16)]


def scattered(tokens: int) -> list[StepPlan]:
    """Return two sequences in uneven chunks side by side, their blocks scattered and of no order."""
    mine, others = (9, 3, 14, 0), (1, 12, 4, 20)
    plans = []
    for start, end in ((0, 5), (5, 6), (6, 23), (23, tokens)):
        beside = part("b", start, range(tokens - 1 - start, tokens - 1 - end, -1), others)
        plans.append(StepPlan((part("a", start, range(start, end), mine), beside)))
    return plans


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", HEADS)
def test_attention(shape: tuple[int, int, int], variant: str) -> None:
    for isa in isas():
        compare(attention_probe(*shape, **VARIANTS[variant]), scattered(48), atol=ATTENTION_TOLERANCE, isa=isa)


@pytest.mark.parametrize("variant", ["plain", "sinks"])
@pytest.mark.parametrize("window", [None, 1, 16, 100, 256, 400])
def test_attention_over_several_segments(window: int | None, variant: str) -> None:
    """650 tokens are three work items of 256 tokens that are merged; a window may begin in any of them."""
    probe = attention_probe(4, 2, 16, tokens=650, window=window, **VARIANTS[variant])
    cuts = (0, 60, 120, 180, 240, 255, 256, 257, 320, 383, 447, 511, 512, 513, 570, 630, 649, 650)
    blocks = [int(b) for b in np.random.default_rng(0).permutation(48)[:41]]
    plans = [StepPlan((part("a", s, range(s, e), blocks),)) for s, e in pairwise(cuts)]
    for num_threads in (1, 2):
        compare(probe, plans, ATTENTION_TOLERANCE, max_model_len=1024, num_blocks=48, num_threads=num_threads)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dim", [8, 24, 64])
@pytest.mark.parametrize("kv", ["fp16", "bf16", "int8", "int4"])
def test_attention_over_rounded_caches(kv: str, dim: int, isa: str) -> None:
    """The reference rounds keys and values as the format stores them, so no more is lost than in float32."""
    compare(attention_probe(4, 2, dim), scattered(48), atol=ATTENTION_TOLERANCE, kv=kv, isa=isa)


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "int8", "int4"])
def test_values_beyond_a_half_saturate(kv: str) -> None:
    """A key or value of 1e6 must not become infinite in an f16 cache."""
    probe = attention_probe(2, 1, 16)
    probe.inputs["x"][3, 2 * 16 :] = 1e6
    assert np.isfinite(run(probe.native(kv_dtype=kv), rows_plan(20))).all()


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "int8", "int4"])
def test_copied_blocks_hold_the_same(kv: str) -> None:
    """A fork's second block is a copy; both go on alike, and the copy does not follow its source."""
    probe = attention_probe(4, 2, 24)
    executor = probe.native(kv_dtype=kv)
    run(executor, StepPlan((part("a", 0, range(20), (4, 5)),)))
    fork = StepPlan((part("b", 20, (30,), (4, 7)), part("a", 20, (30,), (4, 5))), block_copies=((5, 7),))
    first, second = run(executor, fork)
    assert same_bits(first, second)
    apart = StepPlan((part("b", 21, (31,), (4, 7)), part("a", 21, (32,), (4, 5))))
    run(executor, apart)
    again = StepPlan((part("b", 22, (40,), (4, 7)), part("a", 22, (40,), (4, 5))))
    first, second = run(executor, again)
    assert not same_bits(first, second)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "int8", "int4"])
def test_what_an_earlier_request_left_is_not_read(kv: str, isa: str) -> None:
    """A block's unused slots may hold NaN from a request that failed."""
    probe = attention_probe(4, 2, 24)
    probe.inputs["x"][16:32] = np.nan
    executor, clean = (probe.native(kv_dtype=kv, isa=isa) for _ in range(2))
    bad = run(executor, StepPlan((part("bad", 0, range(16, 32), (3,)),)))
    assert not np.isfinite(bad[:, 0]).any()
    for count in (1, 5, 15):
        plan = StepPlan((part("good", 0, range(count), (3,)),))
        assert same_bits(run(executor, plan), run(clean, plan))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_chunks_neighbours_and_threads_do_not_change_a_bit(data: st.DataObject) -> None:
    """Whatever the chunks, the sequence beside it and the threads, a token's attention has the same bits."""
    shape = data.draw(st.sampled_from([(4, 2, 24), (9, 3, 16), (2, 2, 64)]))
    options = VARIANTS[data.draw(st.sampled_from(sorted(VARIANTS)))]
    kv = data.draw(st.sampled_from(["f32", "f16", "int8", "int4"]))
    probe = attention_probe(*shape, tokens=60, **options)
    whole = run(probe.native(kv_dtype=kv), rows_plan(60))
    executor = probe.native(kv_dtype=kv, num_threads=data.draw(st.integers(1, 3)))
    blocks = data.draw(st.permutations(range(24)))
    got, start = [], 0
    while start < 60:
        end = min(60, start + data.draw(st.integers(1, 30)))
        beside = part("b", 0, range(data.draw(st.integers(1, 30))), blocks[4:6], 0)
        mine = part("a", start, range(start, end), blocks[:4])
        pair = (mine, beside) if data.draw(st.booleans()) else (beside, mine)
        got.append(run(executor, StepPlan(pair)))
        start = end
    assert same_bits(np.concatenate(got), whole)


BASE = MoE("x", "y", "router", "gate", "up", "down", 8, 3, 64, 32, "silu", "softmax", True)
ROUTING = {
    "softmax": BASE,
    "unnormalized": replace(BASE, norm_topk_prob=False, routed_scaling_factor=2.5),
    "softmax after top-k": replace(BASE, scoring="softmax_after_topk"),
    "sigmoid": replace(BASE, scoring="sigmoid", routed_scaling_factor=1.5),
    "correction": replace(BASE, scoring="sigmoid", score_correction_bias="correction"),
    "groups": replace(BASE, num_expert_groups=4, topk_groups=2, norm_topk_prob=False),
    "groups of two": replace(
        BASE, scoring="sigmoid", score_correction_bias="correction", num_expert_groups=4, topk_groups=2
    ),
    "biased": replace(
        BASE,
        scoring="softmax_after_topk",
        activation="swiglu_oai",
        limit=7.0,
        router_bias="router.bias",
        gate_bias="gate.bias",
        up_bias="up.bias",
        down_bias="down.bias",
    ),
    "one": replace(BASE, top_k=1),
    "all": replace(BASE, top_k=8),
    "added": replace(BASE, add_to_output=True),
}


def moe_probe(op: MoE) -> Probe:
    shapes = {
        "router": (8, 64),
        "gate": (8, 32, 64),
        "up": (8, 32, 64),
        "down": (8, 64, 32),
        "correction": (8,),
        "router.bias": (8,),
        "gate.bias": (8, 32),
        "up.bias": (8, 32),
        "down.bias": (8, 64),
    }
    weights = {
        name: normals(*shape, seed=i, size=shape[-1] ** -0.5 if len(shape) == 3 else 0.5)
        for i, (name, shape) in enumerate(shapes.items())
    }
    return on_rows(op, {"x": normals(33, 64), "y": normals(33, 64, seed=50)}, "y", 64, **weights)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("routing", ROUTING)
def test_moe(routing: str, isa: str) -> None:
    compare(moe_probe(ROUTING[routing]), [rows_plan(33), rows_plan(1)], atol=1e-5, rtol=1e-5, isa=isa)
    compare(moe_probe(ROUTING[routing]), [rows_plan(33)], atol=1e-5, rtol=1e-5, isa=isa, num_threads=2)


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_a_tokens_experts_do_not_depend_on_its_neighbours(activations: str) -> None:
    probe = moe_probe(ROUTING["sigmoid"])
    rng = np.random.default_rng(1)
    for name, shape in (("gate", (256, 64)), ("up", (256, 64)), ("down", (512, 32))):
        experts = stored(rng, "Q8_0", *shape)
        probe.weights = {**probe.weights, name: replace(experts, shape=(8, shape[0] // 8, shape[1]))}
    executor = probe.native(activations=activations)
    together = run(executor, rows_plan(33))
    for count, first in ((1, 0), (1, 32), (7, 20), (32, 1)):
        assert same_bits(run(executor, rows_plan(count, first)), together[first : first + count])


def test_registers_may_change_their_width() -> None:
    """A program's register name stands for one buffer for each width it takes."""
    ops = [
        Linear("x", "h", ("a",), 48, (20,)),
        Linear("h", "x", ("b",), 20, (48,)),
        Linear("x", "h", ("c",), 48, (33,)),
    ]
    weights = {"a": normals(20, 48, size=0.15), "b": normals(48, 20, seed=1, size=0.2), "c": normals(33, 48, size=0.15)}
    compare(on_rows(ops, {"x": normals(30, 48)}, "h", 33, **weights), [rows_plan(30)], atol=1e-5)


def test_block_size_is_the_kernels() -> None:
    from mansard import _native

    assert _native.BLOCK_SIZE == BLOCK
