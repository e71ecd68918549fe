"""Where requests come from: arrival processes, closed loops, chats, traces and what their tokens stand for."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.sim.arrivals import Arrivals
from mansard.sim.planned import EOS, PlannedRequest, TokenIds
from mansard.sim.synthetic import draw, synthetic_chats, synthetic_requests
from mansard.sim.trace import PACKAGED, planned_requests, read_trace
from mansard.sim.traffic import Chats, ClosedLoop, OpenLoop, Turn
from mansard.specs.workload import Workload, find_workload


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant", "diurnal"])
def test_arrivals_keep_their_rate_and_are_sorted(kind):
    times = Arrivals(kind, rate_req_s=4.0, cv=2.0, period_s=100.0).times(20_000, np.random.default_rng(1))
    assert (np.diff(times) >= 0.0).all()
    # The mean of 20,000 gaps of variation 2 has a standard error of 1.4 %; three of them.
    assert 20_000 / times[-1] == pytest.approx(4.0, rel=0.045)


@pytest.mark.parametrize(("cv", "expected"), [(0.5, 0.5), (1.0, 1.0), (3.0, 3.0)])
def test_gamma_arrivals_have_the_variation_asked_for(cv, expected):
    gaps = np.diff(Arrivals("gamma", 2.0, cv).times(40_000, np.random.default_rng(2)))
    # A heavy-tailed sample: its variation at n = 40,000 scatters by about 2 % at cv 3.
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.07)


def test_diurnal_arrivals_swing():
    times = Arrivals("diurnal", 50.0, period_s=100.0, swing=0.8).times(50_000, np.random.default_rng(3))
    phase = times % 100.0
    peak, trough = ((phase > 15) & (phase < 35)).sum(), ((phase > 65) & (phase < 85)).sum()
    # The rate is 1 + 0.8 sin: (1 + 0.75) / (1 - 0.75) = 7 over these fifths of the period.
    assert peak / trough == pytest.approx(7.0, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "weekly"}, "weekly"),
        ({"rate_req_s": 0.0}, "above 0"),
        ({"cv": -1.0}, "above 0"),
        ({"swing": 2.0}, "swing"),
    ],
)
def test_wrong_arrivals_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Arrivals(**changes)


def test_lengths_are_drawn_from_the_distribution():
    lengths = find_workload("chat").input_tokens
    found = np.array(draw(lengths, 40_000, np.random.default_rng(4)))
    for probability in (0.1, 0.5, 0.9):
        # The standard error of a quantile of 40,000 draws is below 1 % here.
        assert np.quantile(found, probability) == pytest.approx(lengths.quantile(probability), rel=0.03)


def test_the_same_seed_gives_the_same_requests_and_another_does_not():
    workload = find_workload("chat")
    make = lambda seed: synthetic_requests(workload, Arrivals(), 50, seed)
    assert make(1) == make(1)
    assert make(1) != make(2)


def test_a_shared_prefix_is_the_same_tokens_in_all_and_nothing_else_is():
    workload = Workload.from_lengths(100, 5, shared_prefix_tokens=40)
    first, second = (r.prompt_token_ids() for r in synthetic_requests(workload, Arrivals(), 2))
    assert len(first) == len(second) == 100
    assert first[:40] == second[:40]
    assert not set(first[40:]) & set(second[40:])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 30))
def test_a_planned_request_knows_its_tokens(lengths, num_output):
    ids = TokenIds()
    planned = PlannedRequest("a", 0.0, tuple((ids.fresh(), n) for n in lengths), num_output, ids.fresh())
    tokens = planned.prompt_token_ids()
    assert len(tokens) == planned.num_prompt_tokens == sum(lengths)
    assert EOS not in tokens
    history = [t for token, n in planned.history() for t in [token] * n]
    assert history == [*tokens, *[planned.output_token_id] * (num_output - 1), EOS]


def test_a_request_without_tokens_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        PlannedRequest("a", 0.0, ((1, 0),), 3, 2)


def requests(count):
    ids = TokenIds()
    return [PlannedRequest(str(i), float(i), ((ids.fresh(), 5),), 3, ids.fresh()) for i in range(count)]


def test_a_closed_loop_keeps_its_users_busy():
    loop = ClosedLoop(requests(5), num_users=2, think_s=1.5)
    first = loop.first()
    assert [(r.id, r.arrival_s) for r in first] == [("0", 0.0), ("1", 0.0)]
    following = loop.follow_up(first[0], 10.0)
    assert following is not None and (following.id, following.arrival_s) == ("2", 11.5)
    assert loop.follow_up(first[1], 12.0) and loop.follow_up(following, 13.0)
    assert loop.follow_up(first[0], 14.0) is None
    assert loop.first() == first, "a second run starts over"
    assert loop.num_requests == 5


def test_an_open_loop_waits_for_nobody():
    loop = OpenLoop(requests(3))
    assert not loop.reacts and loop.follow_up(loop.first()[0], 1.0) is None
    assert loop.longest() == 8


def test_each_turn_of_a_chat_contains_the_conversation_so_far():
    chats = Chats([2.0], [[Turn(10, 4), Turn(6, 3, think_s=5.0)]], system=((99, 7),))
    (first,) = chats.first()
    second = chats.follow_up(first, 20.0)
    assert second is not None
    assert first.num_prompt_tokens == 17 and second.num_prompt_tokens == 17 + 4 + 6
    assert second.arrival_s == 25.0 and second.session == first.session
    before = [*first.prompt_token_ids(), *[first.output_token_id] * 3, EOS]
    assert list(second.prompt_token_ids()[: len(before)]) == before
    assert chats.follow_up(second, 30.0) is None
    assert chats.longest() == 7 + 10 + 4 + 6 + 3 and chats.num_requests == 2


def test_synthetic_chats_have_the_turns_asked_for():
    chats = synthetic_chats(Workload.from_lengths(50, 20, shared_prefix_tokens=10), Arrivals(), 4, 3, think_s=2.0)
    assert chats.num_requests == 12 and len(chats.first()) == 4
    with pytest.raises(ValueError, match="turns"):
        synthetic_chats(Workload.from_lengths(50, 20), Arrivals(), 4, 0)


# Traces.

EXPECTED = {  # requests, mean prompt and output: the statistics published with the traces
    "azure-conv": (19_366, 1154.7, 211.1),
    "azure-code": (8_819, 2047.8, 27.9),
    "mooncake": (12_031, 12_035.0, 342.6),
}


@pytest.mark.parametrize("name", PACKAGED)
def test_the_packaged_traces_are_the_published_ones(name):
    rows = read_trace(name)
    count, prompt, output = EXPECTED[name]
    assert len(rows) == count
    assert np.mean([r.num_input_tokens for r in rows]) == pytest.approx(prompt, rel=1e-3)
    assert np.mean([r.num_output_tokens for r in rows]) == pytest.approx(output, rel=1e-3)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(rows))
    assert rows[0].arrival_s == 0.0


def test_equal_hashes_become_equal_tokens():
    """36.6 % of Mooncake's 512-token blocks were seen before; so many tokens begin a prompt that came before."""
    planned = planned_requests(read_trace("mooncake"), TokenIds())
    seen, hits, total = set(), 0, 0
    for request in planned:
        for token_id, length in request.prompt:
            total += length
            hits += length if token_id in seen else 0
            seen.add(token_id)
    assert hits / total == pytest.approx(0.366, abs=0.02)


def test_a_trace_is_rescaled_and_repeated():
    rows = read_trace("azure-code")[:100]
    planned = planned_requests(rows, TokenIds(), rate_req_s=5.0, count=250)
    assert len(planned) == 250 and planned[0].arrival_s == 0.0
    assert 249 / planned[-1].arrival_s == pytest.approx(5.0)
    assert [p.num_prompt_tokens for p in planned[100:200]] == [r.num_input_tokens for r in rows]
    own, scaled = (rows[50].arrival_s / rows[99].arrival_s, planned[50].arrival_s / planned[99].arrival_s)
    assert own == pytest.approx(scaled), "bursts stay bursts"


def test_a_repeated_trace_shares_no_text_with_itself():
    rows = read_trace("mooncake")[:5]
    planned = planned_requests(rows, TokenIds(), count=10)
    laps = [{t for r in part for t, _ in r.prompt} for part in (planned[:5], planned[5:])]
    assert not laps[0] & laps[1]


def test_traces_of_ones_own_are_read_by_their_columns(tmp_path):
    files = {
        "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:48.1805900,396,109\n",
        "plain.csv": "arrival_s,input_tokens,output_tokens,priority\n10,374,44,1\n11.5,396,109,0\n",
        "mooncake.jsonl": '{"timestamp": 3000, "input_length": 374, "output_length": 44, "hash_ids": [7]}\n'
        '{"timestamp": 4500, "input_length": 396, "output_length": 109, "hash_ids": [7]}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        rows = read_trace(str(tmp_path / name))
        assert [(r.arrival_s, r.num_input_tokens, r.num_output_tokens) for r in rows] == [
            (0.0, 374, 44),
            (pytest.approx(1.5), 396, 109),
        ], name
    assert read_trace(str(tmp_path / "plain.csv"))[0].priority == 1
    assert read_trace(str(tmp_path / "mooncake.jsonl"))[1].hash_ids == (7,)
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(files["plain.csv"].encode()))
    assert len(read_trace(str(packed))) == 2


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match="azure-conv"):
        read_trace("nothing")
    path = tmp_path / "bad.csv"
    path.write_text("time,prompt\n1,2\n")
    with pytest.raises(ValueError, match="row 1"):
        read_trace(str(path))
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"timestamp": 1, "input_length": "many", "output_length": 3}) + "\n")
    with pytest.raises(ValueError, match=r"row 1.*many"):
        read_trace(str(path))
    with pytest.raises(ValueError, match="no requests"):
        planned_requests([], TokenIds())
