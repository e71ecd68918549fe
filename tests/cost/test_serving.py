"""Serving in closed form: monotone where physics says so, consistent with itself, textbook cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cost.energy import joules_per_token, power_w
from mansard.cost.formats import PrecisionPlan
from mansard.cost.op_cost import Layout
from mansard.cost.serving import estimate, offline_throughput, priced_program
from mansard.cost.steady_state import Load, Speculation, serve
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset

H100, L40S = find_hardware("h100-sxm"), find_hardware("l40s")
LLAMA_8B, LLAMA_70B = preset("llama-3.1-8b"), preset("llama-3.1-70b")
FP8 = PrecisionPlan.uniform("fp8", kv="fp8")
EIGHT = priced_program(LLAMA_8B, H100, Layout(), PrecisionPlan())


@settings(max_examples=40, deadline=None)
@given(isl=st.integers(16, 8000), osl=st.integers(64, 4000), concurrency=st.integers(1, 400), more=st.integers(1, 400))
def test_more_users_wait_longer_and_get_more_in_all(isl: int, osl: int, concurrency: int, more: int) -> None:
    few, many = (serve(EIGHT, Load(float(isl), float(osl), float(c))) for c in (concurrency, concurrency + more))
    # The fixed point is iterated three times only, and beyond saturation the wait for more prompts costs a few percent.
    assert many.tpot_s >= few.tpot_s * (1 - 0.01)
    assert many.output_tokens_per_s >= few.output_tokens_per_s * (1 - 0.05)
    assert few.tpot_s >= few.itl_s * (1 - 1e-12)
    assert few.ttft_s > few.prefill_s


@settings(max_examples=25, deadline=None)
@given(isl=st.integers(2, 8000), cached=st.floats(0.0, 0.99))
def test_a_cached_prefix_never_costs(isl: int, cached: float) -> None:
    cold = serve(EIGHT, Load(float(isl), 200.0, 32.0))
    warm = serve(EIGHT, Load(float(isl), 200.0, 32.0, cached_tokens=isl * cached))
    # Prefill attention is priced by the length of its context, cached or not: a short rest may gain nothing.
    assert warm.ttft_s <= cold.ttft_s * 1.02


def test_interference_is_part_of_tpot() -> None:
    """Each decode step carries D/OSL of a prompt: long prompts with short outputs slow everyone's tokens down."""
    found = serve(EIGHT, Load(4000.0, 100.0, 64.0, burst_share=0.0))
    assert found.tpot_s > 2 * found.itl_s
    alone = serve(EIGHT, Load(4000.0, 4000.0, 1.0))
    assert alone.tpot_s < 1.05 * alone.itl_s


def test_the_cache_limits_who_runs() -> None:
    found = serve(EIGHT, Load(1000.0, 1000.0, 400.0, capacity_tokens=100_000.0))
    assert found.running == 50
    free = serve(EIGHT, Load(1000.0, 1000.0, 50.0))
    assert found.ttft_s > 5 * free.ttft_s  # seven of eight wait for a place


def test_a_sweep_is_its_single_estimates() -> None:
    counts = np.array([1.0, 8.0, 64.0])
    sweep = estimate(LLAMA_8B, H100, input_tokens=512.0, output_tokens=256.0, concurrency=counts)
    for i, count in enumerate(counts):
        one = estimate(LLAMA_8B, H100, input_tokens=512.0, output_tokens=256.0, concurrency=float(count))
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            assert getattr(sweep, name).best[i] == pytest.approx(getattr(one, name).best, rel=1e-9)
        assert sweep.mfu[i] == pytest.approx(one.mfu, rel=1e-9)


def test_estimate_is_consistent_with_itself() -> None:
    found = estimate(
        LLAMA_70B, H100, input_tokens=1000.0, output_tokens=500.0, concurrency=64.0, num_devices=8,
        layout=Layout(4), precision=FP8,
    )  # fmt: skip
    assert found.num_replicas == 2 and found.calibrated
    assert found.output_tokens_per_s.best == pytest.approx(64 * 500 / found.e2e_s, rel=1e-6)
    assert found.tokens_per_s_per_device * 8 == pytest.approx(found.output_tokens_per_s.best)
    assert found.requests_per_s * 500 == pytest.approx(found.output_tokens_per_s.best)
    assert 0 < found.mbu < 1 and 0 < found.mfu < 1
    assert found.ttft_s.low <= found.ttft_s.best <= found.ttft_s.high
    cost = found.usd_per_million_tokens(3.0)
    assert cost == pytest.approx(3.0 * 8 / 3600 / found.output_tokens_per_s.best * 1e6)
    with pytest.raises(ValueError, match="multiple of 4"):
        estimate(LLAMA_70B, H100, input_tokens=1.0, output_tokens=1.0, concurrency=1.0, num_devices=6,
                 layout=Layout(4), precision=FP8)  # fmt: skip


def test_single_stream_is_memory_bound() -> None:
    """8B in 16 bits on 3.35 TB/s: 16 GB of weights allow 209 tokens/s; engines measure 130 to 170."""
    found = estimate(LLAMA_8B, H100, input_tokens=128.0, output_tokens=128.0, concurrency=1.0, engine="trtllm")
    assert 110 < found.tokens_per_s_per_user < 209
    assert found.bound == "memory" and found.mfu < 0.05 < 0.4 < found.mbu


def test_offline_is_the_limit_of_concurrency() -> None:
    most = offline_throughput(LLAMA_8B, H100, input_tokens=512.0, output_tokens=512.0, layout=Layout(),
                              precision=FP8)  # fmt: skip
    some = estimate(LLAMA_8B, H100, input_tokens=512.0, output_tokens=512.0, concurrency=64.0, precision=FP8,
                    burst_share=0.0)  # fmt: skip
    assert most.output_tokens_per_s.best > some.output_tokens_per_s.best


def test_static_batch_runs_all_prompts_first() -> None:
    found = serve(EIGHT, Load(1000.0, 100.0, 16.0, static=True))
    alone = serve(EIGHT, Load(1000.0, 100.0, 1.0, static=True))
    assert found.ttft_s == pytest.approx(16 * alone.ttft_s, rel=1e-6)
    assert found.tpot_s == found.itl_s


def test_speculation_follows_leviathan() -> None:
    """Four drafts at 0.8 yield (1 − 0.8⁵) / 0.2 = 3.36 tokens a step; at batch 1 the step hardly grows."""
    drafts = Speculation(4, 0.8)
    assert drafts.tokens_per_step() == pytest.approx(3.3616)
    assert Speculation(3, 1.0).tokens_per_step() == 4.0
    plain = serve(EIGHT, Load(100.0, 400.0, 1.0))
    quick = serve(EIGHT, Load(100.0, 400.0, 1.0, speculation=drafts))
    assert 2.5 < plain.tpot_s / quick.tpot_s < 3.3616
    busy = [serve(EIGHT, Load(100.0, 400.0, 400.0, speculation=s)).tpot_s for s in (None, Speculation(4, 0.3, 0.1))]
    assert busy[1] > 0.9 * busy[0]  # a compute-bound batch has nothing to gain from poor drafts


def test_pipeline_stages_trade_latency_for_nothing_at_batch_one() -> None:
    one, two = (
        estimate(LLAMA_8B, H100, input_tokens=100.0, output_tokens=100.0, concurrency=1.0, layout=Layout(1, pp))
        for pp in (1, 2)
    )
    assert two.tpot_s.best >= one.tpot_s.best


def test_energy_lies_between_idle_and_the_board_limit() -> None:
    idle, full = power_w(H100, 0.0, 0.0), power_w(H100, 1.0, 1.0)
    assert 0 < idle < full == 700
    assert joules_per_token(H100, 2, 1.0, 1.0, 1400.0) == pytest.approx(1.0)


def test_uncalibrated_hardware_says_so() -> None:
    found = estimate(LLAMA_8B, find_hardware("v100"), input_tokens=10.0, output_tokens=10.0, concurrency=1.0,
                     precision=PrecisionPlan.uniform("fp16"))  # fmt: skip
    assert not found.calibrated
    assert found.tpot_s.high / found.tpot_s.low > 4
