"""Loads: ramps, traces, plans, early ends, and sweeps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from bench.streams import ScriptedServer, record, run_virtually

from mansard.bench.arrivals import Ramp, ramp_times_s
from mansard.bench.load import LoadPlan, PlannedRequest, run_load
from mansard.bench.load_arguments import LoadArguments
from mansard.bench.prompts import Prompt, WordTokenizer
from mansard.bench.records import Cause, Phase, RequestRecord
from mansard.bench.summary import Summary, summarize
from mansard.bench.sweep import SweepPoint, geometric_levels, is_saturated, knee
from mansard.bench.trace import read_trace
from mansard.bench.workload_plan import LengthLimits, draw_lengths
from mansard.specs.workload import find_workload


def planned(count: int) -> list[PlannedRequest]:
    return [PlannedRequest(i, Prompt(" a", (0,)), 1) for i in range(count)]


def test_a_constant_ramp_keeps_its_rate_and_a_rising_one_its_count() -> None:
    np.testing.assert_allclose(ramp_times_s(2.0, 2.0, 10.0, float("inf")), np.arange(1, 21) / 2.0)
    times = ramp_times_s(1.0, 9.0, 100.0, float("inf"))
    assert len(times) == 500 and (np.diff(times) > 0).all()
    # Λ(t) = t + 0.04 t²: a quarter of the arrivals lies before t = 50 s but for (1·50 + 100) = 150 of 500.
    assert (times <= 50.0).sum() == 150
    with pytest.raises(ValueError, match="above 0"):
        ramp_times_s(0.0, 1.0, 1.0)


def test_a_ramp_is_an_open_loop_that_says_how_many_come() -> None:
    ramp = Ramp.parse("1:9:20s")
    assert ramp == Ramp(1.0, 9.0, 20.0)
    plan, described = LoadArguments(workload="8/4", ramp=ramp, burstiness=float("inf")).plan(WordTokenizer())
    times = [r.at_s for r in plan.requests]
    assert plan.is_open_loop and plan.max_concurrency is None and plan.num_warmup == 0
    assert len(times) == described["num_requests"] == 100 and times == sorted(times) and times[-1] <= 20.0
    assert described["ramp"] == "1 to 9 req/s in 20 s"
    for text in ("1:9", "a:b:c", "0:1:1", "1:1:inf", "1:2:3:4"):
        with pytest.raises(ValueError, match="ramp"):
            Ramp.parse(text)
    with pytest.raises(ValueError, match="one of them"):
        LoadArguments(ramp=ramp, rate_per_s=1.0)
    with pytest.raises(ValueError, match="no request"):
        LoadArguments(ramp=Ramp(0.1, 0.1, 1.0), burstiness=float("inf")).plan(WordTokenizer())


def test_prompts_share_the_blocks_that_a_trace_says_they_share(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    asked = [(1100, [7, 8, 9]), (1500, [7, 8, 10]), (600, [11, 12]), (300, [7])]
    path.write_text("".join(
        json.dumps({"timestamp": i, "input_length": n, "output_length": 2, "hash_ids": ids}) + "\n"
        for i, (n, ids) in enumerate(asked)
    ))  # fmt: skip
    plan, described = LoadArguments(trace=str(path), nonce=3).plan(WordTokenizer())
    first, second, third, fourth = (r.prompt.token_ids for r in plan.requests)
    assert [len(r.prompt.token_ids) for r in plan.requests] == [n for n, _ in asked]
    assert first[:1024] == second[:1024] and first[1024:1040] != second[1024:1040]
    assert third[:16] != first[:16] and fourth == first[:300]
    assert described["shared_block_share"] == pytest.approx((1024 + 300) / 3500)
    again, _ = LoadArguments(trace=str(path), nonce=4).plan(WordTokenizer())
    assert again.requests[0].prompt.token_ids[:16] != first[:16]  # no cache of an earlier run helps
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [-1]}')
    with pytest.raises(ValueError, match=r"request 1.*hash id"):
        read_trace(wrong)
    cut, _ = LoadArguments(trace=str(path), nonce=3, limits=LengthLimits(max_prompt=520)).plan(WordTokenizer())
    assert cut.requests[0].prompt.token_ids == first[:520]


def test_azures_mooncakes_vidurs_and_plain_traces(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.0319600,4808,10\n"
    )
    found = read_trace(azure)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in found] == [(4808, 10), (3180, 8)]
    assert [r.at_s for r in found] == pytest.approx([0.0, 1.0])
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text(
        '{"timestamp": 40, "input_length": 7, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 277, "input_length": 9, "output_length": 0, "hash_ids": [0, 2]}\n'
    )
    found = read_trace(mooncake, speed=2.0)
    assert [r.at_s for r in found] == pytest.approx([0.0, 0.1185])
    assert found[0].hash_ids == (0, 1) and found[1].num_output_tokens == 1
    vidur = tmp_path / "vidur.csv"
    vidur.write_text("num_prefill_tokens,num_decode_tokens\n3772,54\n")
    assert read_trace(vidur)[0].at_s is None
    vidur.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="request 1"):
        read_trace(vidur)
    vidur.write_text("a,b\n")
    with pytest.raises(ValueError, match="no requests"):
        read_trace(vidur)


def test_a_plan_has_exact_lengths_and_the_same_times_for_every_nonce() -> None:
    given = LoadArguments(workload="20/5", num_requests=10, rate_per_s=4.0, num_warmup=2, seed=3, nonce=1)
    plan, described = given.plan(WordTokenizer())
    again, _ = LoadArguments(workload="20/5", num_requests=10, rate_per_s=4.0, num_warmup=2, seed=3, nonce=2).plan(
        WordTokenizer()
    )
    assert plan.is_open_loop and plan.num_warmup == 2 and len(plan.requests) == 12
    assert [r.at_s for r in plan.requests] == [r.at_s for r in again.requests]
    assert {r.prompt.num_tokens for r in plan.requests} == {20}
    assert not {r.prompt.text for r in plan.requests} & {r.prompt.text for r in again.requests}
    assert (described["num_requests"], described["lengths"], described["nonce"]) == (10, "estimated", 1)


def test_lengths_are_drawn_from_the_workload_and_cut_to_the_limits() -> None:
    lengths = draw_lengths(find_workload("chat"), 4000, seed=1)
    mean = find_workload("chat").mean_input_tokens
    # The lengths' coefficient of variation is about 1: the mean of 4,000 is good to 1.6 %; five of those.
    assert np.mean([p for p, _ in lengths]) == pytest.approx(mean, rel=0.08)
    limits = LengthLimits(max_prompt=100, max_output=10, max_total=64)
    assert limits.cut(1000, 1000) == (54, 10) and limits.cut(5, 3) == (5, 3)
    assert LengthLimits(max_total=8).cut(100, 100) == (1, 7)


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"num_requests": 0}, "requests"), ({"rate_per_s": -1.0}, "rate"), ({"num_warmup": -1}, "warm-up")],
)
def test_a_load_that_makes_no_sense_is_refused(fields: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        LoadArguments(**fields)  # type: ignore[arg-type]


def test_a_plan_without_a_driver_or_with_only_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        LoadPlan(planned(3), is_open_loop=False)
    with pytest.raises(ValueError, match="warm-up"):
        LoadPlan(planned(3), is_open_loop=False, max_concurrency=1, num_warmup=3)


def test_an_interrupted_run_keeps_what_is_there() -> None:
    """Ctrl-C at 2.6 s of 1 s requests, two at once: four are done, two are cancelled and count as neither."""

    async def run() -> list[RequestRecord]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(2.6, stop.set)
        plan = LoadPlan(planned(50), is_open_loop=False, max_concurrency=2)
        return await run_load(plan, ScriptedServer(ttft_s=1.0), stop=stop)

    records = run_virtually(run())
    summary = summarize(records)
    assert (summary.success.num_succeeded, summary.success.num_cancelled, summary.success.num_failed) == (4, 2, 0)
    assert {r.error for r in records if r.error} == {Cause.CANCELLED.value}
    assert all(r.phase is Phase.MEASURED for r in records)


def test_a_sender_that_fails_ends_the_run() -> None:
    class Broken:
        async def send(self, request: PlannedRequest, scheduled_s: float) -> RequestRecord:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_virtually(run_load(LoadPlan(planned(3), is_open_loop=False, max_concurrency=2), Broken()))


def level(throughput: float, *, failed: int = 0, duration_s: float = 10.0) -> Summary:
    count = round(throughput * duration_s)
    records = [record(i, at=i * duration_s / count, ttft=0.01) for i in range(count)]
    return summarize([*records, *(record(count + i, ttft=None, error="http 503") for i in range(failed))])


def test_saturation() -> None:
    points = [SweepPoint(1.0, level(1.0)), SweepPoint(2.0, level(2.0)), SweepPoint(4.0, level(2.1))]
    assert not is_saturated(points[:2], True) and is_saturated(points, True)
    assert not is_saturated(points[:2], False)
    assert is_saturated([*points[:2], SweepPoint(4.0, level(2.05))], False)
    assert is_saturated([SweepPoint(1.0, level(1.0, failed=5))], True)


def test_the_knee_is_where_latency_begins_to_pay_for_nothing() -> None:
    assert knee([1, 2, 4, 8, 8.5], [1, 1, 1.1, 1.4, 6]) == 3
    assert knee([1, 2], [1, 2]) is None and knee([1, 1, 1], [1, 2, 3]) is None
    assert geometric_levels(1, 16, 5) == pytest.approx([1, 2, 4, 8, 16])
    assert geometric_levels(1, 4, 6, whole=True) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="levels"):
        geometric_levels(0, 4, 3)
