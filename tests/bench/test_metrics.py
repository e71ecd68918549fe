"""Laws of the metrics over any stream, and agreement with the simulator's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.bench import metrics
from mansard.bench.records import Chunk, RequestRecord
from mansard.sim.outcome import RequestOutcome


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    num_frames = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.floats(0.0, 10.0), min_size=num_frames, max_size=num_frames))
    knows = draw(st.booleans())
    chunks, now = [], 1.0
    for gap in gaps:
        now += gap
        count = draw(st.integers(1, 9)) if knows else None
        chunks.append(Chunk(now, count, draw(st.integers(0, 30))))
    told = sum(c.num_tokens or 1 for c in chunks) if knows else draw(st.integers(0, 60))
    return RequestRecord(0, 1.0, 1.0, chunks=tuple(chunks), num_output_tokens=draw(st.sampled_from([told, None])))


@given(records())
def test_inter_token_latencies_sum_to_the_time_between_first_and_last(record: RequestRecord) -> None:
    metrics.check(record)
    assert all(gap >= 0.0 for gap in metrics.itl_s(record))


@given(records())
def test_tokens_of_frames_add_up(record: RequestRecord) -> None:
    counts = metrics.chunk_tokens(record)
    assert len(counts) == len(record.chunks) and min(counts) >= 0
    if metrics.output_tokens(record) >= 1:
        assert counts[0] >= 1
    if len(record.chunks) > 1:
        assert sum(counts) == metrics.output_tokens(record)
        assert len(metrics.itl_s(record)) == metrics.output_tokens(record) - 1


@given(records())
def test_the_mean_inter_token_latency_is_the_time_per_output_token(record: RequestRecord) -> None:
    gaps, tpot = metrics.itl_s(record), metrics.tpot_s(record)
    if gaps:
        # Sums of up to 60 float64 gaps of at most 10 s.
        assert tpot is not None and sum(gaps) / len(gaps) == pytest.approx(tpot, abs=1e-9)


def test_the_simulator_means_the_same_by_the_same_words() -> None:
    seen = RequestRecord(0, 1.0, 1.0, chunks=tuple(Chunk(1.5 + 0.25 * i, 1) for i in range(5)), num_output_tokens=5)
    simulated = RequestOutcome("0", 1.0, 1.1, 1.5, 2.5, 10, 5, 0, 0, "stop")
    assert metrics.ttft_s(seen) == simulated.ttft_s
    assert metrics.e2e_s(seen) == simulated.e2e_s
    assert metrics.tpot_s(seen) == simulated.tpot_s
