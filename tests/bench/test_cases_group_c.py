"""The reported ways in which benchmarks of language models went wrong, each with the right number.

Every test plays scripted bytes through the code that reads sockets, or runs the real load generator on a loop whose
clock jumps: nothing is timed. Numbers are exact but for float64 sums, hence the tolerances of pytest.approx (1e-6).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench.streams import DONE, ScriptedServer, content, event, finish, play, record, role, run_virtually, usage

from mansard.bench import metrics
from mansard.bench.arrivals import arrival_times_s, gaps_s
from mansard.bench.load import LoadPlan, PlannedRequest, run_load
from mansard.bench.metrics import chunk_gaps_s, e2e_s, goodput, itl_s, tpot_s, ttfb_s, ttft_s
from mansard.bench.prompts import BLOCK_TOKENS, Prompt, PromptMaker, WordTokenizer
from mansard.bench.records import Cause, Chunk, Phase, RequestRecord
from mansard.bench.server_counters import parse_exposition, prefix_hits, unexpected_hits
from mansard.bench.summary import summarize
from mansard.specs.slo import Slo

approx = pytest.approx


def planned(count: int, times: list[float] | None = None) -> list[PlannedRequest]:
    prompt = Prompt(" a", (0,))
    return [PlannedRequest(i, prompt, 1, times[i] if times else 0.0) for i in range(count)]


def test_c01_a_role_frame_is_no_token() -> None:
    frames = [(0.9, role())] + [(2.2 + 0.02 * i, content()) for i in range(101)]
    reply = play([*frames, (4.2, finish()), (4.2, usage(101)), (4.2, DONE)])
    seen = reply.record()
    assert ttft_s(seen) == approx(2.2)
    assert ttfb_s(seen) == approx(0.9)  # under its own name
    assert len(itl_s(seen)) == 100 and itl_s(seen) == approx([0.02] * 100)
    assert tpot_s(seen) == approx(0.02)
    assert e2e_s(seen) == approx(4.2)
    assert seen.succeeded and seen.finish_reason == "stop"


def test_c03_a_trailing_usage_frame_moves_no_clock() -> None:
    frames = [(1.0 + 0.1 * i, content()) for i in range(10)]
    seen = play([*frames, (5.0, usage(10)), (5.1, DONE)]).record()
    assert (ttft_s(seen), e2e_s(seen)) == (approx(1.0), approx(1.9))
    assert seen.closed_s == 5.1 and metrics.close_delay_s(seen) == approx(3.2)
    assert seen.num_output_tokens == 10


def test_c03_text_finish_and_usage_in_one_frame() -> None:
    counts = {"prompt_tokens": 3, "completion_tokens": 1}
    one = {"choices": [{"delta": {"content": "Yes"}, "finish_reason": "stop"}], "usage": counts}
    seen = play([(0.4, event(one)), (0.5, DONE)]).record()
    assert ttft_s(seen) == approx(0.4)
    assert itl_s(seen) == [] and tpot_s(seen) is None
    assert seen.succeeded


def test_c04_ttft_is_not_among_the_inter_token_latencies() -> None:
    seen = play([(2.0 + 0.1 * i, content()) for i in range(10)] + [(2.9, usage(10)), (2.9, DONE)]).record()
    gaps = itl_s(seen)
    assert len(gaps) == 9 and np.mean(gaps) == approx(0.1)
    assert sum(gaps) == approx(0.9) == approx(e2e_s(seen) - ttft_s(seen))  # type: ignore[operator]
    assert tpot_s(seen) == approx(0.1)
    metrics.check(seen)


def test_c04_the_invariant_is_checked_at_run_time() -> None:
    backwards = RequestRecord(7, 0.0, 0.0, chunks=(Chunk(2.0, 1), Chunk(1.0, 1)), num_output_tokens=2)
    with pytest.raises(AssertionError, match="request 7"):
        summarize([backwards])


def test_c05_tpot_and_itl_when_frames_carry_many_tokens() -> None:
    one_each = RequestRecord(0, 0.0, 0.0, chunks=tuple(Chunk(1.0 + i, 1) for i in range(50)), num_output_tokens=50)
    assert (ttft_s(one_each), tpot_s(one_each)) == (approx(1.0), approx(1.0))
    assert itl_s(one_each) == approx([1.0] * 49)
    ten = RequestRecord(0, 0.0, 0.0, chunks=tuple(Chunk(10.0 * i, 10) for i in range(1, 6)), num_output_tokens=50)
    assert ttft_s(ten) == approx(10.0)
    assert tpot_s(ten) == approx(40 / 49)  # not 1 s: the first ten came at once
    assert chunk_gaps_s(ten) == approx([10.0] * 4)
    assert itl_s(ten) == approx([0.0] * 9 + [1.0] * 40)
    assert np.mean(itl_s(ten)) == approx(40 / 49)


def test_c05_frames_without_counts_share_the_servers_total() -> None:
    frames = [(10.0 * i, content(" word" * 10)) for i in range(1, 6)]
    seen = play([*frames, (50.0, finish()), (50.0, usage(50)), (50.0, DONE)]).record()
    assert metrics.chunk_tokens(seen) == [10] * 5
    assert tpot_s(seen) == approx(40 / 49) and metrics.itl_is_measurable(seen)


def test_c05_hidden_tokens_have_no_inter_token_latency() -> None:
    frames = [(1.0 + 0.1 * i, content(" tok")) for i in range(32)]
    seen = play([*frames, (60.0, finish("tool_calls")), (60.0, usage(6400)), (60.0, DONE)]).record()
    assert not metrics.itl_is_measurable(seen)
    summary = summarize([seen])
    assert "itl_s" not in summary.latencies
    assert any("not measurable" in warning for warning in summary.warnings)


def test_c07_the_servers_count_is_the_truth() -> None:
    """A hundred single spaces re-tokenize to a few ids; dividing by those would give a TPOT of seconds."""
    frames = [(1.0 + 0.05 * i, content(" ")) for i in range(100)]
    seen = play([*frames, (6.0, finish("length")), (6.0, usage(100)), (6.0, DONE)]).record()
    assert metrics.output_tokens(seen) == 100 and metrics.count_source(seen) == "usage"
    assert tpot_s(seen) == approx(0.05 * 99 / 99)
    summary = summarize([RequestRecord(**{**_fields(seen), "num_retokenized": 4})])
    assert summary.retokenized_mismatch == 1.0
    assert any("re-tokenize" in w for w in summary.warnings)


def test_c07_without_usage_counts_are_marked_as_estimated() -> None:
    seen = play([(1.0, content()), (1.1, content()), (1.1, finish()), (1.1, DONE)]).record()
    assert metrics.count_source(seen) == "estimated" and metrics.output_tokens(seen) == 2
    summary = summarize([seen])
    assert summary.counts_estimated == 1 and any("estimated" in w for w in summary.warnings)


def _fields(seen: RequestRecord) -> dict[str, object]:
    return {name: getattr(seen, name) for name in seen.__dataclass_fields__}


@pytest.mark.parametrize(("cap", "mean", "longest", "delay"), [(1, 1.90, 3.30, 1.40), (None, 0.50, 0.50, 0.0)])
def test_c09_waiting_in_the_client_is_waiting(cap: int | None, mean: float, longest: float, delay: float) -> None:
    """Eight arrivals 100 ms apart at 500 ms each; one at a time, number i ends at 0.5 (i + 1) and was due at 0.1 i."""
    plan = LoadPlan(planned(8, [0.1 * i for i in range(8)]), is_open_loop=True, max_concurrency=cap)
    server = ScriptedServer(ttft_s=0.5)
    found = summarize(run_virtually(run_load(plan, server))).latencies
    assert found["e2e_s"].mean.value == approx(mean)
    assert found["e2e_s"].maximum == approx(longest)
    assert found["queue_delay_s"].mean.value == approx(delay)
    assert found["e2e_from_send_s"].mean.value == approx(0.5)  # the misleading one
    assert server.order == list(range(8)) and (server.most_running == 1) == (cap == 1)


def test_c11_failures_do_not_improve_the_averages() -> None:
    refused = [record(i, ttft=None, error="http 503", closed_s=0.005) for i in range(40)]
    empty = [record(40 + i, ttft=None, num_output_tokens=0, finish_reason="stop", closed_s=0.2) for i in range(10)]
    normal = [record(50 + i, ttft=0.5, gap=0.1, tokens=6, num_retries=i == 0) for i in range(50)]
    summary = summarize([*refused, *empty, *normal], Slo(ttft_s=1.0))
    assert summary.success.num_succeeded == 50 and summary.success.num_failed == 50
    assert summary.success.causes == {"http 503": 40, Cause.EMPTY.value: 10}
    assert summary.success.rate == 0.5 and summary.success.num_retries == 1
    assert summary.latencies["ttft_s"].count == 50 and summary.latencies["ttft_s"].mean.value == approx(0.5)
    assert summary.duration_s == approx(1.0)
    assert summary.output_tokens_per_s == approx(300.0)  # delivered ones over all the time
    assert summary.goodput is not None and summary.goodput.attainment == 0.5
    assert any("50.0% of requests succeeded" in w for w in summary.warnings)


def test_c11_a_503_is_read_as_a_failure_with_its_reason() -> None:
    seen = play([(0.005, b'{"error": {"message": "overloaded"}}')], status=503).record()
    assert (seen.error, seen.message, seen.succeeded) == ("http 503", "overloaded", False)


def test_c13_a_warm_cache_is_seen_and_named() -> None:
    lines = (
        "# HELP mansard:prefix_cache_queries_total x",
        'mansard:prefix_cache_queries_total{model_name="a"} 1000.0',
        'mansard:prefix_cache_hits_total{model_name="a"} 8.0',
    )
    first = parse_exposition("\n".join(lines))
    again = {"mansard:prefix_cache_queries": 2000.0, "mansard:prefix_cache_hits": 908.0}
    cold, warm = prefix_hits({}, first), prefix_hits(first, again)
    assert cold is not None and warm is not None
    assert cold.rate == approx(0.008) and unexpected_hits(cold, 0.0) is None
    assert warm.rate == approx(0.9)
    assert "90.0%" in (unexpected_hits(warm, 0.0) or "")
    assert unexpected_hits(warm, 0.9) is None  # shared on purpose
    told = prefix_hits({}, {}, [record(num_prompt_tokens=100, num_cached_tokens=30)])
    assert told is not None and (told.rate, told.source) == (0.3, "usage of the answers")


def test_c13_a_new_nonce_makes_new_prompts_and_the_same_one_the_same() -> None:
    def heads(nonce: int) -> set[tuple[int, ...]]:
        maker = PromptMaker(WordTokenizer(), nonce)
        return {maker.make(i, 64).token_ids[:BLOCK_TOKENS] for i in range(100)}

    assert heads(1) == heads(1)
    assert not heads(1) & heads(2)


def test_c14_prompts_are_distinct_from_the_first_block_on() -> None:
    maker = PromptMaker(WordTokenizer(), nonce=3)
    prompts = [maker.make(i, 128) for i in range(1000)]
    assert len({p.token_ids[:BLOCK_TOKENS] for p in prompts}) == 1000
    assert all(p.num_tokens == 128 and p.is_exact for p in prompts)
    shared = PromptMaker(WordTokenizer(), nonce=3, num_shared_tokens=32)
    prompts = [shared.make(i, 128) for i in range(100)]
    assert len({p.token_ids[:32] for p in prompts}) == 1
    assert len({p.token_ids[32 : 32 + BLOCK_TOKENS] for p in prompts}) == 100


@pytest.mark.parametrize(("burstiness", "cv"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (math.inf, 0.0)])
def test_c15_burstiness(burstiness: float, cv: float) -> None:
    gaps = gaps_s(10.0, 100_000, burstiness, seed=1)
    # The mean of n gaps has a standard error of 0.1·cv/√n; five of those. That of the CV is below 1 % for all four.
    assert gaps.mean() == approx(0.1, abs=5 * 0.1 * cv / math.sqrt(len(gaps)) + 1e-12)
    assert gaps.std() / gaps.mean() == approx(cv, rel=0.03, abs=1e-12)
    assert np.isfinite(gaps).all()
    np.testing.assert_array_equal(arrival_times_s(10.0, 50, burstiness, 7), arrival_times_s(10.0, 50, burstiness, 7))


@pytest.mark.parametrize("burstiness", [0.0, -1.0, math.nan])
def test_c15_no_burstiness_of_zero_or_less(burstiness: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        gaps_s(10.0, 5, burstiness)


def test_c17_the_opening_wave_is_apart() -> None:
    """Ten cold requests at t = 0 take 40 to 58 s, ninety warm ones 0.60 to 1.38 s."""
    cold = list(np.linspace(40.1, 57.6, 10))
    warm = [0.60, *np.linspace(0.62, 0.786, 88), 1.38]
    times = [*cold, *warm]
    slow = dict(enumerate(times))
    gap = 0.1146
    plan = LoadPlan(planned(100), is_open_loop=False, max_concurrency=10, num_opening=10)
    records = run_virtually(run_load(plan, ScriptedServer(slow=slow, gap_s=gap, num_tokens=5)))
    summary = summarize(records)
    assert summary.latencies["ttft_s"].count == 90
    assert summary.latencies["ttft_s"].percentile(50).value == approx(0.703, abs=0.001)
    assert summary.latencies["ttft_s"].maximum == approx(1.38)
    assert summary.opening["ttft_s"].count == 10 and summary.opening["ttft_s"].minimum == approx(40.1)
    mixed = summarize([r.in_phase(Phase.MEASURED) for r in records])
    assert mixed.latencies["ttft_s"].percentile(95).value > 40  # what was reported at first
    assert summary.latencies["itl_s"].percentile(50).value == approx(gap)
    assert mixed.latencies["itl_s"].percentile(50).value == approx(gap)


def test_c17_warm_up_keeps_the_cap_and_runs_into_the_measurement() -> None:
    """Twelve warm-ups at concurrency 4: never more than four at once, and no pause before the first measured one."""
    slow = {i: 1.0 + 0.1 * i for i in range(20)}
    server = ScriptedServer(slow=slow)
    plan = LoadPlan(planned(40), is_open_loop=False, max_concurrency=4, num_warmup=12)
    records = run_virtually(run_load(plan, server))
    assert server.most_running == 4
    warm = [r for r in records if r.phase is Phase.WARMUP]
    measured = [r for r in records if r.phase is Phase.MEASURED]
    assert (len(warm), len(measured)) == (12, 28)
    first = min(r.sent_s for r in measured if r.sent_s is not None)
    assert sum(r.end_s > first for r in warm) == 3  # the others are still under way when it goes


def test_c19_littles_law() -> None:
    assert metrics.time_from_little(14, 0.5) == 28.0
    assert metrics.rate_from_little(100, 8.0) == 12.5
    plan = LoadPlan(planned(400), is_open_loop=False, max_concurrency=10)
    records = run_virtually(run_load(plan, ScriptedServer(ttft_s=0.5, gap_s=0.1, num_tokens=6)))
    little = summarize(records).little
    assert little is not None
    assert little.in_flight == approx(10.0) and little.time_s == approx(1.0) and little.rate_per_s == approx(10.0)
    assert little.is_steady and abs(little.error) < 0.05


def test_c19_a_ramp_up_is_no_steady_state() -> None:
    """Arrivals ten times faster than service: the number in flight grows all the time."""
    plan = LoadPlan(planned(200, [0.01 * i for i in range(200)]), is_open_loop=True)
    summary = summarize(run_virtually(run_load(plan, ScriptedServer(ttft_s=10.0))))
    assert summary.little is not None and not summary.little.is_steady
    assert any("steady" in w for w in summary.warnings)


def test_c20_outputs_shorter_than_asked_for() -> None:
    lengths = [380, 384, 382]
    records = [
        record(i, tokens=n, gap=0.01, target_output_tokens=5000, target_prompt_tokens=100, num_prompt_tokens=123)
        for i, n in enumerate(lengths)
    ]
    summary = summarize(records)
    assert summary.output_lengths is not None
    assert (summary.output_lengths.mean, summary.output_lengths.minimum, summary.output_lengths.maximum) == (
        382,
        380,
        384,
    )
    assert summary.output_lengths.deviation == approx(382 / 5000 - 1)
    assert summary.templated_extra_tokens == 23
    assert any("5,000 were asked for" in w for w in summary.warnings)
    exact = summarize([record(tokens=99, gap=0.01, target_output_tokens=100)])
    assert not exact.warnings  # within 2 %


def test_c22_goodput_is_judged_request_by_request() -> None:
    """TTFT holds for 8, TPOT for 7, both for 6; one failed; one reply has a single token."""
    slo = Slo(ttft_s=1.0, tpot_s=0.1)
    both = [record(i, ttft=0.5, gap=0.05, tokens=5) for i in range(6)]
    single = record(6, ttft=0.5, tokens=1)
    slow_tokens = record(7, ttft=0.5, gap=0.2, tokens=5)
    slow_start = record(8, ttft=2.0, gap=0.05, tokens=5)
    failed = record(9, ttft=None, error="http 500")
    cancelled = record(10, ttft=None, error=Cause.CANCELLED.value)
    records = [*both, single, slow_tokens, slow_start, failed, cancelled]
    passes = goodput(records, slo, 10.0)
    assert passes.requests_per_s == approx(0.7) and passes.attainment == approx(7 / 10)
    left_out = goodput(records, slo, 10.0, "left out")
    assert left_out.requests_per_s == approx(0.6) and left_out.attainment == approx(6 / 9)
    assert (passes.single_token, left_out.single_token) == ("passes", "left out")
    mean_tpot = np.mean([t for r in records if (t := tpot_s(r)) is not None])
    assert mean_tpot < 0.1  # a run-wide mean would have passed the slow one


def test_c23_mbu_counts_what_a_step_reads() -> None:
    assert metrics.mbu(0.398e9, 1 / 25.77, 17.07e9) == approx(0.60, abs=0.005)
    assert metrics.mbu(4.4e9, 26.5e-3, 936e9) == approx(0.177, abs=0.0005)
    assert metrics.mbu(3.3e9 * 2, 5e-3, 3350e9) == approx(0.39, abs=0.005)
    with pytest.raises(ValueError, match="impossible"):
        metrics.mbu(30.5e9 * 2, 5e-3, 3350e9)  # all experts
    with pytest.raises(ValueError, match="impossible"):
        metrics.mfu(2 * 8e9 * 1000, 1e-3, 989e12)
