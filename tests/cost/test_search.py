"""The search: every candidate ranked or rejected with its first limit; stacks price as singles; true frontiers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mansard.cost.candidates import deployments, layouts
from mansard.cost.deployment import Pricer, make_deployment
from mansard.cost.op_cost import Layout
from mansard.cost.options import evaluate, evaluate_all
from mansard.cost.pareto import TradeOff, by_cost, by_device, trade_offs
from mansard.cost.pick import pick
from mansard.cost.planner import answer
from mansard.cost.question import Question, chat
from mansard.cost.search import Found, search
from mansard.cost.tails import normal_quantile, tpot_at, ttft_at
from mansard.specs.hardware_catalogue import catalogue, find_hardware
from mansard.specs.model_presets import preset
from mansard.specs.slo import parse_slo
from mansard.specs.workload import Workload, find_workload

INTERACTIVE = parse_slo("ttft=1s,tpot=30ms,p95")


def ask(model: str, gpu: str | None = None, **settings: object) -> Question:
    hardware = () if gpu is None else tuple(find_hardware(name) for name in gpu.split(","))
    settings.setdefault("workload", chat())
    return Question(preset(model), hardware=hardware, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole() -> tuple[Question, Found]:
    question = ask("llama-3.1-8b", slo=INTERACTIVE, max_devices=4, weights=("bf16", "int4"))
    return question, search(question)


def test_the_sweep_covers_the_whole_catalogue(whole: tuple[Question, Found]) -> None:
    _, found = whole
    names = {option.deployment.hardware.name for option in found.options}
    assert names == set(catalogue())
    assert len(found.ranked) + len(found.rejected) == len(found.options)
    ranked = {id(p.option) for p in found.ranked}
    assert ranked.isdisjoint({id(r.option) for r in found.rejected})
    assert all(len(r.limit) > 10 for r in found.rejected)


def test_every_ranked_option_keeps_the_limits_and_fits_by_the_ledger(whole: tuple[Question, Found]) -> None:
    question, found = whole
    assert len(found.ranked) > 30
    for picked in found.ranked:
        assert INTERACTIVE.is_met(picked.ttft_s, picked.tpot_s)
        ledger = picked.option.ledger
        assert ledger is not None and ledger.fits and ledger.longest_model_len >= question.context
        assert picked.concurrency <= picked.option.max_running
        assert picked.tpot_s > 0 and picked.output_tokens_per_s > 0


def test_rejections_name_numbers_or_the_format(whole: tuple[Question, Found]) -> None:
    limits = [r.limit for r in whole[1].rejected]
    assert any("GiB" in text for text in limits)
    assert any("TPOT p95 is" in text and "the limit is 30.0 ms" in text for text in limits)


def test_the_cheapest_comes_first_and_unpriced_hardware_last(whole: tuple[Question, Found]) -> None:
    costs = [p.usd_per_million_tokens for p in whole[1].ranked]
    priced = [c for c in costs if c is not None]
    assert priced == sorted(priced)
    assert costs[: len(priced)] == priced  # None only behind them


def test_frontiers_are_not_dominated(whole: tuple[Question, Found]) -> None:
    points = trade_offs(whole[1].options)

    def dominates(a: TradeOff, b: TradeOff) -> bool:
        ahead = (
            a.tokens_per_s_per_user >= b.tokens_per_s_per_user,
            a.tokens_per_s_per_device >= b.tokens_per_s_per_device,
        )
        return (
            all(ahead)
            and a != b
            and (
                a.tokens_per_s_per_user > b.tokens_per_s_per_user
                or a.tokens_per_s_per_device > b.tokens_per_s_per_device
            )
        )

    frontier = by_device(points)
    assert len(frontier) > 5
    assert not any(dominates(p, q) for p in points for q in frontier)
    cheap = by_cost(points)
    for p in points:
        if p.usd_per_million_tokens is not None:
            better = [
                q
                for q in cheap
                if q.tokens_per_s_per_user >= p.tokens_per_s_per_user
                and (q.usd_per_million_tokens or 0) <= p.usd_per_million_tokens
            ]
            assert better, "a point outside the frontier that nothing beats"


def test_a_stack_prices_as_its_members_do() -> None:
    """Columns of rates may not change a number: only the order of additions can differ, hence 1e-9."""
    question = ask("qwen3-30b-a3b", "h100,h200,h800,a100-sxm-80gb,mi300x,l40s,rtx4090", weights=("bf16", "fp8", "int4"))
    pricer = Pricer(question)
    made = tuple(deployments(question))
    together = evaluate_all(question, pricer, made)
    compared = 0
    for deployment, option in zip(made, together, strict=True):
        single = evaluate(question, pricer, deployment)
        assert single.limit == option.limit
        if option.curve is None or single.curve is None:
            continue
        full = pricer.estimate(option.deployment, option.grid, option.capacity_tokens)
        np.testing.assert_allclose(option.curve.tpot_s, full.tpot_s.best, rtol=1e-9)
        np.testing.assert_allclose(option.curve.ttft_s, full.ttft_s.best, rtol=1e-9)
        np.testing.assert_allclose(option.curve.output_tokens_per_s, full.output_tokens_per_s.best, rtol=1e-9)
        np.testing.assert_allclose(option.curve.tpot_s, single.curve.tpot_s, rtol=1e-9)
        compared += 1
    assert compared > 20


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(1.05, 4.0), st.sampled_from(["llama-3.1-8b", "gpt-oss-20b", "gemma-3-12b"]))
def test_more_bandwidth_is_never_slower(factor: float, model: str) -> None:
    question = ask(model, "h100")
    pricer = Pricer(question)
    hardware = question.hardware[0]
    faster = replace(hardware, memory_bytes_per_s=hardware.memory_bytes_per_s * factor)
    options = [
        evaluate(question, pricer, make_deployment(question, h, Layout(), "bf16", "bf16", "vllm"))
        for h in (hardware, faster)
    ]
    before, after = (o.curve for o in options)
    assert before is not None and after is not None
    assert (after.tpot_s <= before.tpot_s * (1 + 1e-12)).all()
    assert (after.output_tokens_per_s >= before.output_tokens_per_s * (1 - 1e-12)).all()


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([("fp32", "bf16"), ("bf16", "fp8"), ("fp8", "int4"), ("bf16", "int8"), ("int8", "int4")]),
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite"]),
    st.sampled_from([1, 2]),
)
def test_a_smaller_format_never_takes_more_memory(pair: tuple[str, str], model: str, size: int) -> None:
    question = ask(model, "b200")
    pricer = Pricer(question)
    wide, narrow = (
        pricer.ledger(make_deployment(question, question.hardware[0], Layout(size), name, "bf16", "vllm"))
        for name in pair
    )
    assert narrow.weights_total.best <= wide.weights_total.best
    assert narrow.kv.best >= wide.kv.best


def test_a_rate_takes_as_many_replicas_as_it_needs() -> None:
    slow, fast = (
        answer(ask("llama-3.1-8b", "h100", workload=chat().at_rate(rate), slo=INTERACTIVE)) for rate in (2.0, 60.0)
    )
    assert slow.chosen is not None and fast.chosen is not None
    assert slow.chosen.deployment.num_devices == 1 < fast.chosen.deployment.num_devices
    for plan, rate in ((slow, 2.0), (fast, 60.0)):
        chosen = plan.chosen
        assert chosen is not None and chosen.limit is None
        # The load is found on the grid by interpolation, the throughput at it exactly: within 5 %.
        assert chosen.output_tokens_per_s / plan.question.output_tokens == pytest.approx(rate, rel=0.05)
        assert INTERACTIVE.is_met(chosen.ttft_s, chosen.tpot_s)


def test_a_rate_that_a_fixed_number_cannot_serve_is_refused_with_the_numbers() -> None:
    question = ask("llama-3.1-8b", "l4", workload=chat().at_rate(200.0), num_devices=2)
    plan = answer(question)
    assert not plan.fits
    assert any("200 are asked for" in r.limit for r in plan.rejected)


def test_objectives_differ_where_they_should() -> None:
    plans = {o: answer(ask("llama-3.1-70b", "h100,l40s", objective=o)) for o in ("cheapest", "fewest", "fastest")}
    chosen = {o: p.chosen for o, p in plans.items()}
    assert all(c is not None for c in chosen.values())
    devices = {o: c.deployment.num_devices for o, c in chosen.items() if c}
    assert devices["fewest"] == min(devices.values())
    speeds = {o: c.tpot_s for o, c in chosen.items() if c}
    assert speeds["fastest"] == min(speeds.values())
    costs = [c.usd_per_million_tokens for c in chosen.values() if c]
    assert costs[0] == min(c for c in costs if c is not None)


@pytest.mark.parametrize(("model", "tensor_parallel"), [("qwen3-14b", 5), ("llama-3.1-8b", 3)])
def test_impossible_splits_are_refused(model: str, tensor_parallel: int) -> None:
    """Case A04: an engine rejects these late and in its own words; no command may be printed for them."""
    layout = Layout(tensor_parallel=tensor_parallel)
    plan = answer(ask(model, "h100", layout=layout, num_devices=tensor_parallel))
    assert not plan.fits and plan.closest is not None
    assert f"tensor_parallel {tensor_parallel}" in plan.closest.limit


def test_hardware_without_bf16_keeps_16_bits_as_fp16() -> None:
    plan = answer(ask("llama-3.1-8b", "v100", num_devices=1))
    assert plan.deployment is not None and (plan.deployment.weights, plan.deployment.kv) == ("fp16", "fp16")


def test_splits_follow_links_and_engine() -> None:
    spec, moe = preset("llama-3.1-8b"), preset("deepseek-v3")
    h100, l40s, mac = (find_hardware(n) for n in ("h100", "l40s", "Apple-M4-Max-40c-128GB"))
    assert layouts(spec, h100, "vllm", 8) == (Layout(tensor_parallel=8),)
    assert Layout(tensor_parallel=8, pipeline_parallel=2) in layouts(spec, h100, "vllm", 16)
    assert Layout(tensor_parallel=2, pipeline_parallel=2) in layouts(spec, l40s, "vllm", 4)
    assert Layout(data_parallel=8, expert_parallel=8) in layouts(moe, h100, "vllm", 8)
    assert layouts(spec, h100, "llama.cpp", 4) == (Layout(pipeline_parallel=4),)
    assert layouts(spec, mac, "vllm", 2) == ()


def test_a_request_longer_than_the_context_is_refused() -> None:
    question = ask("llama-2-7b", "h100", workload=find_workload("8000/1000"))
    plan = answer(question)
    assert not plan.fits and plan.closest is not None and "4,096" in plan.closest.limit


def test_a_lower_fraction_is_found_where_graphs_do_not_fit() -> None:
    """Case A12: gpt-oss-20b dies in warm-up at 0.95; without a fraction given, a safe one is planned."""
    question = ask("gpt-oss-20b", "h100", num_devices=1, memory_fraction=0.95)
    refused = answer(question)
    assert not refused.fits and refused.closest is not None and "come after the cache" in refused.closest.limit
    plan = answer(replace(question, memory_fraction=None))
    assert plan.deployment is not None and plan.deployment.fraction <= 0.90


def test_the_load_is_between_the_grid_points() -> None:
    question = ask("llama-3.1-8b", "h100", slo=INTERACTIVE, num_devices=1)
    option = evaluate(
        question, Pricer(question), make_deployment(question, question.hardware[0], Layout(), "bf16", "bf16", "vllm")
    )
    picked = pick(question, option)
    assert picked is not None and option.tpot_s is not None and option.grid is not None
    next_load = picked.concurrency * 1.12
    tpot = float(np.interp(next_load, option.grid, option.tpot_s))
    ttft = float(np.interp(next_load, option.grid, option.ttft_s))  # type: ignore[arg-type]
    assert not INTERACTIVE.is_met(ttft, tpot), "a tenth more would still be admissible"


def test_tails_grow_with_the_percentile() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        normal_quantile(1.0)
    ttft = [float(ttft_at(p, 1.0, 0.5, 2.0)) for p in (50.0, 90.0, 99.0)]
    tpot = [float(tpot_at(p, 0.03, 0.02, 16.0)) for p in (50.0, 90.0, 99.0)]
    assert ttft == sorted(ttft) and tpot == sorted(tpot) and (ttft[0], tpot[0]) == (1.0, 0.03)


def test_questions_are_checked() -> None:
    for wrong in ({"objective": "best"}, {"num_devices": 0}, {"max_model_len": 10**9}):
        with pytest.raises(ValueError, match=r"objective|devices|max_model_len"):
            ask("llama-3.1-8b", "h100", **wrong)
    fixed = Workload.from_lengths(1000, 100)
    assert ask("llama-3.1-8b", "h100", workload=fixed).context == 1100


def test_a_tight_limit_may_take_another_token_budget() -> None:
    """Long prompts in whole-prompt steps interrupt every decode; the search tries smaller budgets too."""
    slo = parse_slo("tpot=20ms,p99")
    question = ask("llama-3.1-8b", "h100", workload=Workload.from_lengths(12_000, 300), slo=slo, num_devices=1)
    free = answer(question)
    fixed = answer(replace(question, num_batched_tokens=8192))
    assert free.chosen is not None and slo.is_met(free.chosen.ttft_s, free.chosen.tpot_s)
    if fixed.chosen is not None:
        assert free.chosen.output_tokens_per_s >= fixed.chosen.output_tokens_per_s * 0.999


def test_a_cache_format_that_a_head_cannot_take_is_a_limit() -> None:
    plan = answer(ask("opt-2.7b", "h100", kv=("Q8_0",), workload=Workload.from_lengths(500, 100)))
    assert plan.closest is not None and "80 values cannot be stored as Q8_0" in plan.closest.limit
    assert answer(ask("opt-2.7b", "h100", kv=("Q8_0", "bf16"), workload=Workload.from_lengths(500, 100))).fits
