"""Laws of the price of a step, and its counts against textbook arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cost.collectives import LinkConstants, collective_time
from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout, touched_experts
from mansard.cost.profiles import profile_for
from mansard.cost.roofline import PricedProgram, price
from mansard.cost.shape import StepShape
from mansard.program.decoder import decoder
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model import LinearAttentionSpec, MlaSpec, ModelSpec, MoeSpec

H100 = find_hardware("h100-sxm")
DENSE = ModelSpec("llama", 4, 1024, 2816, 16, 4, 64, 32_000, 4096)
MOE = replace(DENSE, moe=MoeSpec(num_experts=16, num_experts_per_tok=2, moe_intermediate_size=512))
MLA = replace(DENSE, mla=MlaSpec(512, 64, 128, 128, q_lora_rank=768))
LINEAR = replace(DENSE, layer_types=("linear", "full") * 2, linear_attention=LinearAttentionSpec(4, 8, 64, 64, 4))
SLIDING = replace(DENSE, layer_types=("sliding", "full") * 2, sliding_window=128)
SPECS = [DENSE, MOE, MLA, LINEAR, SLIDING]

shapes = st.builds(
    StepShape,
    num_decodes=st.integers(0, 256).map(float),
    decode_context=st.integers(1, 4000).map(float),
    num_prefills=st.integers(0, 4).map(float),
    prefill_tokens=st.integers(1, 2048).map(float),
    prefill_start=st.integers(0, 2000).map(float),
)


def priced(
    spec: ModelSpec, hardware: HardwareSpec = H100, plan: PrecisionPlan | None = None, layout: Layout | None = None
) -> PricedProgram:
    layout = layout or Layout()
    program = decoder(spec, tensor_parallel=layout.tensor_parallel)
    return PricedProgram(program, hardware, profile_for(H100), plan or PrecisionPlan(), layout)


@pytest.mark.parametrize("spec", SPECS, ids=["dense", "moe", "mla", "linear", "sliding"])
@settings(max_examples=25, deadline=None)
@given(shape=shapes, factor=st.floats(1.0, 8.0))
def test_faster_hardware_is_never_slower(spec: ModelSpec, shape: StepShape, factor: float) -> None:
    base = priced(spec).time(shape)
    wider = replace(H100, memory_bytes_per_s=H100.memory_bytes_per_s * factor)
    quicker = replace(H100, flops={k: v * factor for k, v in H100.flops.items()})
    assert priced(spec, wider).time(shape) <= base * (1 + 1e-12)  # the same sums in the same order: only rounding
    assert priced(spec, quicker).time(shape) <= base * (1 + 1e-12)


@pytest.mark.parametrize("spec", SPECS, ids=["dense", "moe", "mla", "linear", "sliding"])
@settings(max_examples=25, deadline=None)
@given(shape=shapes)
def test_sums_and_the_speed_of_light(spec: ModelSpec, shape: StepShape) -> None:
    cost = priced(spec).step(shape)
    assert cost.time_s == pytest.approx(sum(op.time_s for op in cost.ops) + cost.overhead_s)
    assert cost.bytes == pytest.approx(sum(op.bytes for op in cost.ops))
    assert cost.time_s >= cost.bytes / H100.memory_bytes_per_s
    assert cost.time_s >= cost.flops / max(H100.flops.values())
    assert all(op.time_s >= 0 and op.flops >= 0 and op.bytes >= 0 for op in cost.ops)


@settings(max_examples=25, deadline=None)
@given(shape=shapes)
def test_fewer_bits_never_move_more_bytes(shape: StepShape) -> None:
    names = ("fp32", "bf16", "fp8", "int4", "int2")
    sizes = [priced(DENSE, plan=PrecisionPlan(attention=n, mlp=n, head=n)).step(shape) for n in ("bf16", "fp8", "int4")]
    weights = [float(cost.weight_bytes) for cost in sizes]
    assert weights == sorted(weights, reverse=True)
    caches = [float(priced(DENSE, plan=PrecisionPlan(kv=n)).step(shape).kv_bytes) for n in names if n != "fp32"]
    assert caches == sorted(caches, reverse=True)


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 200), context=st.integers(1, 4000))
def test_more_work_takes_longer(batch: int, context: int) -> None:
    one = priced(DENSE)
    now = one.time(StepShape(float(batch), float(context)))
    assert one.time(StepShape(float(batch + 1), float(context))) >= now
    assert one.time(StepShape(float(batch), float(context + 1))) >= now


@pytest.mark.parametrize("spec", SPECS, ids=["dense", "moe", "mla", "linear", "sliding"])
def test_a_sweep_is_its_single_prices(spec: ModelSpec) -> None:
    program = priced(spec)
    batch = np.array([1.0, 7.0, 64.0, 500.0])
    sweep = program.time(StepShape(batch, 900.0, 1.0, 1.0 + 0 * batch, 512.0, 100.0))
    single = [program.time(StepShape(float(b), 900.0, 1.0, 1.0, 512.0, 100.0)) for b in batch]
    np.testing.assert_allclose(sweep, single, rtol=1e-12)  # the same arithmetic, element by element


def test_lists_price_as_their_means_without_windows() -> None:
    contexts, chunks = (100, 900, 2000), ((512, 0), (256, 512))
    listed = StepShape.of(contexts, chunks)
    cost = priced(DENSE).step(listed)
    assert listed.num_tokens == 3 + 768
    assert cost.kv_bytes > 0
    # a window makes the list matter: 100 + 128 + 128 keys, not 3 · 128
    assert listed.decode_kv_tokens(128) == 100 + 128 + 128
    assert StepShape.of((), ((4, 2),)).prefill_pairs(4) == 3 + 4 + 4 + 4


def test_flops_are_two_per_weight_and_token() -> None:
    """A dense decode step multiplies every weight of the layers and the head once per token."""
    cost = priced(DENSE).step(StepShape(1.0, 1.0))
    gemm = sum(float(op.flops) for op in cost.ops if op.work.kind == "gemm")
    layer = 1024 * (16 + 8) * 64 + 1024 * 1024 + 3 * 1024 * 2816
    assert gemm == 2 * (4 * layer + 1024 * 32_000)


def test_llama_2_70b_kv_is_the_published_figure() -> None:
    """Batch 32 at 1,024 tokens: 10.7 GB with 8 KV heads (the formula with `hidden` says 85.9 GB)."""
    spec = ModelSpec("llama", 80, 8192, 28_672, 64, 8, 128, 32_000, 4096)
    shape = StepShape(32.0, 1024.0)
    read = sum(
        float(op.work.kv_bytes) * op.work.count
        for op in priced(spec).step(shape).ops
        if op.work.kind == "decode_attention"
    )
    assert read == pytest.approx(10.7e9, rel=0.005)  # the claim has three digits


def test_experts_touched() -> None:
    assert touched_experts(8, 2, 1.0) == pytest.approx(2.0)
    assert touched_experts(8, 2, 1000.0) == pytest.approx(8.0)


@given(layout=st.sampled_from([Layout(4), Layout(4, expert_parallel=4), Layout(1, 1, 4, 4), Layout(2, 1, 2, 4)]))
def test_a_moe_reads_all_its_experts_whatever_the_layout(layout: Layout) -> None:
    """With many tokens each rank reads a quarter of all experts' weights on four ranks."""
    cost = priced(MOE, layout=layout).step(StepShape(5000.0, 10.0))
    read = sum(float(op.work.weight_bytes) * op.work.count for op in cost.ops if op.work.kind == "moe")
    assert read == pytest.approx(4 * 16 * 3 * 1024 * 512 * 2 / 4)


def test_all_reduce_grows_with_ranks_and_bytes() -> None:
    link = LinkConstants(4e-6, 1e-7, 0.6)
    times = [collective_time("all_reduce", size, n, H100, link) for n in (2, 4, 8) for size in (1e4, 1e6, 1e8)]
    assert times[0] < times[1] < times[2]
    assert times[1] < times[4] < times[7]
    assert collective_time("all_reduce", 1e6, 1, H100, link) == 0.0


def test_tensor_parallel_halves_latency_less_than_twice() -> None:
    spec = ModelSpec("llama", 80, 8192, 28_672, 64, 8, 128, 32_000, 4096)
    shape = StepShape(1.0, 512.0)
    four, eight = (priced(spec, layout=Layout(tp)).time(shape) for tp in (4, 8))
    assert 0.55 < eight / four < 0.85  # published: 0.61 to 0.7 on A100


def test_price_is_the_priced_programs_step_and_refuses_another_layout() -> None:
    program = decoder(DENSE, tensor_parallel=2)
    shape = StepShape(4.0, 100.0)
    once = price(program, shape, H100, profile_for(H100), PrecisionPlan())
    assert once.time_s == priced(DENSE, layout=Layout(2)).time(shape)
    with pytest.raises(ValueError, match="tensor parallel 2"):
        price(program, shape, H100, profile_for(H100), PrecisionPlan(), Layout(4))


def test_bound_changes_with_the_batch() -> None:
    spec = ModelSpec("llama", 32, 4096, 14_336, 32, 8, 128, 128_256, 8192)
    assert priced(spec).step(StepShape(1.0, 512.0)).bound == "memory"
    assert priced(spec).step(StepShape(num_prefills=1.0, prefill_tokens=8192.0)).bound == "compute"


def test_unsupported_format_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot run"):
        priced(DENSE, find_hardware("v100"), PrecisionPlan(mlp="nvfp4"))


def test_published_plans_keep_attention_high_where_publishers_do() -> None:
    assert PrecisionPlan.published(MOE, "mxfp4").attention == "bf16"
    assert PrecisionPlan.published(MOE, "mxfp4").experts == "mxfp4"
    assert PrecisionPlan.published(DENSE, "nvfp4").attention == "nvfp4"
    assert PrecisionPlan.uniform("Q4_K").head == "Q4_K"
    assert PrecisionPlan.uniform("fp8").head == "bf16"
