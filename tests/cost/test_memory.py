"""The memory ledger against what vLLM 0.19 printed on H100, and its laws."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cost.engine_memory import ENGINES, LMDEPLOY, SGLANG, TRTLLM, VLLM, find_engine
from mansard.cost.formats import PrecisionPlan
from mansard.cost.kv_pool import KvSettings, kv_pool
from mansard.cost.memory import Serving, ledger, safe_fraction, weight_bytes
from mansard.cost.op_cost import Layout
from mansard.specs.hardware import GIB
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model import ModelSpec
from mansard.specs.model_presets import find_preset, preset

LOG = Path(__file__).parents[1] / "data" / "kv_pool_h100_vllm019.csv"

# Models of the log that are no presets: Gemma 1 and Granite 3, by their published configs.
OTHERS = {
    "google/gemma-7b": ModelSpec(
        "gemma", 28, 3072, 24576, 16, 16, 256, 256_000, 8192, hidden_act="gelu_tanh", tie_word_embeddings=True
    ),
    "ibm-granite/granite-3.1-8b-instruct": ModelSpec(
        "granite", 40, 4096, 12800, 32, 8, 128, 49_155, 131_072, tie_word_embeddings=True
    ),
}
OTHERS["ibm-granite/granite-3.3-8b-instruct"] = OTHERS["ibm-granite/granite-3.1-8b-instruct"]


def rows():
    lines = [line for line in LOG.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def name(row):
    return f"{row['model'].rsplit('/', 1)[-1]}-tp{row['tp']}-{row['max_model_len']}-{row['kv_cache_dtype']}"


def read(row):
    """Return the row's spec, precision plan, layout and other parameters."""
    model, quantization = row["model"], row["quantization"]
    found = None if model in OTHERS else find_preset(model)
    spec = OTHERS[model] if found is None else found.spec()
    weights = "int8" if "w8a8" in model else "int4" if "w4a16" in model else "bf16"
    weights = "fp8" if quantization == "fp8" or "fp8-dynamic" in model else weights
    kv = "fp8" if row["kv_cache_dtype"] == "fp8" else "bf16"
    plan = PrecisionPlan.uniform(weights, kv)
    if quantization == "mxfp4":
        plan = PrecisionPlan.published(spec, "mxfp4", kv)
    return spec, plan, Layout(tensor_parallel=int(row["tp"])), found.other_parameters if found else 0


def planned(row):
    spec, plan, layout, other = read(row)
    serving = Serving(fraction=float(row["gpu_memory_utilization"]), max_model_len=int(row["max_model_len"]))
    return ledger(spec, find_hardware("h100"), plan, layout, serving, other)


def test_the_log_is_whole():
    assert len(rows()) == 40 and sum(row["status"] == "failed" for row in rows()) == 1


@pytest.mark.parametrize("row", rows(), ids=name)
def test_tokens_and_concurrency_given_the_pool(row):
    spec, plan, layout, _ = read(row)
    pool = kv_pool(
        spec,
        float(row["kv_cache_memory_gib"]) * GIB,
        int(row["max_model_len"]),
        KvSettings(kv_format=plan.kv, tensor_parallel=layout.tensor_parallel),
    )
    # The log prints the pool to 0.01 GiB and concurrency to 0.01: half a digit of the smallest pool is 0.03 %.
    assert pool.num_tokens == pytest.approx(int(row["kv_cache_tokens"]), rel=0.001)
    assert pool.max_concurrency == pytest.approx(float(row["max_concurrency"]), rel=0.001, abs=0.01)
    if row["kv_cache_blocks"]:
        assert pool.num_blocks == pytest.approx(int(row["kv_cache_blocks"]), rel=0.001)


@pytest.mark.parametrize("row", rows(), ids=name)
def test_cache_from_scratch_within_5_percent_and_inside_its_interval(row):
    result = planned(row)
    measured = float(row["kv_cache_memory_gib"]) * GIB
    if float(row["weight_memory_gib"]) < 0.70 * float(row["requested_memory_gib"]):
        assert result.kv.best == pytest.approx(measured, rel=0.05)
    assert result.kv.low - 0.005 * GIB <= measured <= result.kv.high + 0.005 * GIB
    assert result.budget_bytes / GIB == pytest.approx(float(row["requested_memory_gib"]), abs=0.01)


def test_median_error_from_scratch_is_below_half_a_percent():
    errors = sorted(abs(planned(row).kv.best / GIB / float(row["kv_cache_memory_gib"]) - 1) for row in rows())
    assert errors[len(errors) // 2] < 0.005


@pytest.mark.parametrize("row", rows(), ids=name)
def test_it_fits_where_the_log_ran_and_is_refused_where_it_did_not(row):
    result = planned(row)
    assert result.fits == (row["status"] == "ok"), result.problems


def test_the_refused_start_is_safe_at_a_smaller_fraction():
    spec, plan, layout, _ = read(next(row for row in rows() if row["status"] == "failed"))
    at = {
        fraction: ledger(spec, find_hardware("h100"), plan, layout, Serving(fraction=fraction, max_model_len=8192))
        for fraction in (0.90, 0.95)
    }
    assert at[0.90].fits and not at[0.95].fits
    assert 0.90 < safe_fraction(at[0.95]) < 0.95


def test_lines_sum_to_the_visible_memory():
    result = ledger(preset("llama-3.1-8b"), find_hardware("a100-40gb"), serving=Serving(max_model_len=4096))
    assert sum(item.best for _, item in result.items) == pytest.approx(result.visible_bytes)
    assert sum(result.weights.values()) == pytest.approx(result.weights_total.best)
    for _, item in result.items:
        assert item.low <= item.best <= item.high


def test_a_model_too_large_is_refused_with_the_numbers():
    result = ledger(preset("llama-3.1-70b"), find_hardware("h100"))
    assert not result.fits and "131.4" in result.problems[0] and "71.27" in result.problems[0]
    short = ledger(preset("llama-3.1-8b"), find_hardware("rtx-4090"))
    assert not short.fits and "131,072 tokens" in short.problems[0]
    assert 0 < short.longest_model_len < 131_072
    again = Serving(max_model_len=short.longest_model_len)
    assert ledger(preset("llama-3.1-8b"), find_hardware("rtx-4090"), serving=again).fits
    with pytest.raises(ValueError, match="fraction"):
        ledger(preset("llama-3.1-8b"), find_hardware("h100"), serving=Serving(fraction=1.2))


FORMATS = ("fp32", "bf16", "fp8", "int4-g32", "int4")  # from largest to smallest


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b", "deepseek-v2-lite", "qwen3.6-27b"]),
    st.sampled_from([1, 2, 4]),
)
def test_a_smaller_format_never_takes_more_memory_and_leaves_no_smaller_cache(model, tp):
    spec, hardware = preset(model), find_hardware("b200")
    ledgers = [
        ledger(spec, hardware, PrecisionPlan.uniform(f), Layout(tensor_parallel=tp), Serving(max_model_len=4096))
        for f in FORMATS
    ]
    for larger, smaller in pairwise(ledgers):
        assert smaller.weights_total.best <= larger.weights_total.best
        assert smaller.kv.best >= larger.kv.best


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "gemma-2-27b"])
def test_ranks_of_a_split_hold_the_whole_model_together(model):
    spec, plan = preset(model), PrecisionPlan()
    whole = sum(weight_bytes(spec, plan).values())
    for tp in (2, 4, 8):
        parts = sum(weight_bytes(spec, plan, Layout(tensor_parallel=tp)).values()) * tp
        # Norms and routers are held by every rank: under a thousandth of these models.
        assert whole <= parts < whole * 1.001
    stages = sum(weight_bytes(spec, plan, Layout(pipeline_parallel=2)).values())
    assert whole / 2 <= stages < whole / 2 * 1.1
    shared = weight_bytes(spec, plan, Layout(data_parallel=4, expert_parallel=4 if spec.moe else 1))
    assert shared["experts"] == pytest.approx(weight_bytes(spec, plan)["experts"] / 4)
    assert shared["attention"] == weight_bytes(spec, plan)["attention"]


@given(st.floats(1.0, 60.0), st.floats(5.0, 40.0), st.floats(0.0, 5.0), st.sampled_from(list(ENGINES)))
def test_fraction_and_pool_are_inverse_for_every_engine(pool, weights, other, engine):
    found = find_engine(engine)
    fraction = found.fraction_for(pool, 120.0, weights, other)
    assert found.pool_bytes(120.0, weights, other, fraction) == pytest.approx(pool)


def test_conventions_differ_in_what_they_leave_out():
    pools = {e.name: e.pool_bytes(80.0, 20.0, 3.0, 0.8) for e in (VLLM, SGLANG, TRTLLM, LMDEPLOY)}
    assert pools == pytest.approx({"vllm": 41.0, "sglang": 44.0, "trtllm": 45.6, "lmdeploy": 48.0})
    assert find_engine("TensorRT-LLM") is TRTLLM
    with pytest.raises(ValueError, match="vllm"):
        find_engine("vlm")
