"""The planner's answers: the ledger adds up, the table tells the truth, refusals name what would help."""

import numpy as np
import pytest

from mansard.cost.deployment import Pricer
from mansard.cost.phases import op_shares, phases
from mansard.cost.planner import Plan, answer
from mansard.cost.question import Question, chat
from mansard.cost.shape import StepShape
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset
from mansard.specs.slo import Slo, parse_slo
from mansard.specs.workload import find_workload


def plan_for(model: str, gpu: str, **settings: object) -> Plan:
    settings.setdefault("workload", chat())
    hardware = tuple(find_hardware(name) for name in gpu.split(","))
    return answer(Question(preset(model), hardware=hardware, **settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llama() -> Plan:
    return plan_for("llama-3.1-8b", "h100", num_devices=1)


def test_the_ledger_sums_to_the_visible_memory(llama: Plan) -> None:
    ledger = llama.ledger
    assert ledger is not None
    assert sum(item.best for _, item in ledger.items) == pytest.approx(ledger.visible_bytes)
    assert ledger.weights_total.best == pytest.approx(sum(ledger.weights.values()))
    for _, item in ledger.items:
        assert item.low <= item.best <= item.high


def test_the_table_is_consistent_with_itself(llama: Plan) -> None:
    rows = llama.table
    assert [r.concurrency for r in rows] == sorted(r.concurrency for r in rows)
    assert sum(r.chosen for r in rows) == 1
    for row in rows:
        assert row.tokens_per_s_per_user == pytest.approx(1.0 / row.tpot_s)
        assert row.usd_per_million_tokens == pytest.approx(2.95 / 3600 / row.output_tokens_per_s * 1e6)
        assert 0 < row.mbu < 1 and 0 < row.mfu < 1
        assert row.ttft_at_percentile_s >= row.ttft_s and row.tpot_at_percentile_s >= row.tpot_s
    tpot = np.array([r.tpot_s for r in rows])
    assert (np.diff(tpot) > 0).all(), "more requests at once cannot make a token come sooner"
    chosen = next(r for r in rows if r.chosen)
    assert llama.chosen is not None and chosen.concurrency == pytest.approx(llama.chosen.concurrency)
    assert chosen.tpot_at_percentile_s == pytest.approx(llama.chosen.tpot_s)
    assert not chosen.limit and rows[-1].limit


def test_phases_lie_on_their_sides_of_the_ridge(llama: Plan) -> None:
    prefill, alone, together = llama.phases
    assert prefill.intensity > prefill.ridge and prefill.bound == "compute"
    assert alone.intensity < 2.0 and alone.bound == "memory"
    assert alone.intensity < together.intensity < together.ridge
    for phase in llama.phases:
        roof = min(989.4e12, phase.intensity * 3352e9)  # the catalogue's H100 SXM
        assert phase.achieved_flops <= roof * 1.001


def test_the_shares_of_ops_sum_to_one() -> None:
    plan = plan_for("qwen3-30b-a3b", "h100", num_devices=1)
    assert plan.deployment is not None
    pricer = Pricer(plan.question)
    for phase in phases(pricer, plan.deployment, 32.0, detail=True):
        assert sum(op.share for op in phase.ops) == pytest.approx(1.0)
        assert sum(op.flops for op in phase.ops) == pytest.approx(phase.flops)
        assert sum(op.bytes for op in phase.ops) == pytest.approx(phase.bytes)
    names = [op.name for op in op_shares(pricer.priced(plan.deployment).step(StepShape(1.0, 100.0)))]
    assert "experts" in names and names[-1] == "host overhead" and len(names) == len(set(names))


@pytest.mark.parametrize(
    ("model", "gpu"),
    [("llama-3.1-8b", "l4"), ("mixtral-8x7b", "a100-sxm-80gb"), ("deepseek-v2-lite", "h100"), ("gemma-3-27b", "h200")],
)
@pytest.mark.parametrize("slo", [parse_slo("ttft=2s,tpot=50ms,p90"), parse_slo("mlperf-llama3.1-8b-server")])
def test_a_recommendation_keeps_the_service_level_and_fits(model: str, gpu: str, slo: Slo) -> None:
    plan = plan_for(model, gpu, slo=slo)
    if plan.chosen is None:
        assert plan.rejected and plan.closest is not None
        return
    assert slo.is_met(plan.chosen.ttft_s, plan.chosen.tpot_s) and plan.chosen.meets_slo
    assert plan.ledger is not None and plan.ledger.fits
    assert plan.chosen.concurrency <= plan.chosen.option.max_running * plan.chosen.deployment.num_replicas


def test_nothing_fits_names_changes_that_do() -> None:
    plan = plan_for("llama-3.1-70b", "l4", num_devices=4)
    assert not plan.fits and plan.chosen is None and not plan.table
    assert plan.closest is not None and "GiB" in plan.closest.limit
    assert "weights bf16 → int4" in plan.fixes
    again = plan_for("llama-3.1-70b", "l4", num_devices=4, weights=("int4",))
    assert again.fits, "a change that was promised to help must help"


def test_a_context_that_does_not_fit_is_answered_with_the_longest_that_does() -> None:
    plan = plan_for("llama-3.1-8b", "rtx4090", num_devices=1, max_model_len=131_072)
    assert not plan.fits
    advice = next(f for f in plan.fixes if f.startswith("--max-model-len"))
    longest = int(advice.split()[-1])
    assert plan_for("llama-3.1-8b", "rtx4090", num_devices=1, max_model_len=longest).fits


def test_a_service_level_out_of_reach_is_refused_with_the_latency() -> None:
    plan = plan_for("llama-3.1-70b", "l40s", slo=parse_slo("tpot=5ms,p50"), max_devices=8)
    assert not plan.fits and plan.closest is not None and "TPOT p50 is" in plan.closest.limit


def test_without_a_service_level_a_slow_device_still_gets_an_answer() -> None:
    plan = plan_for("llama-3.1-8b", "CPU-EPYC-9654-GENOA", num_devices=1)
    assert plan.chosen is not None and not plan.chosen.meets_slo and plan.chosen.concurrency == 1


def test_cached_prefixes_shorten_prefill() -> None:
    plan = plan_for("llama-3.1-8b", "h100", workload=find_workload("agent"), num_devices=1)
    fresh = plan_for("llama-3.1-8b", "h100", workload=find_workload("15000/149"), num_devices=1)
    assert plan.table[0].ttft_s < 0.6 * fresh.table[0].ttft_s  # 64 % of the agent's prompts are cached


def test_what_cannot_be_comfortable_is_planned_for_one_request() -> None:
    """A lone request already waits too long here: nothing is gained by letting a second one in."""
    plan = plan_for("llama-3.1-8b", "Apple-M4-Max-40c-128GB", workload=find_workload("4000/200"), num_devices=1)
    assert plan.chosen is not None and plan.chosen.concurrency == 1 and not plan.chosen.meets_slo
