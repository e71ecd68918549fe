"""The sampler's laws: filters against plain definitions, seeds, penalties, logprobs, drafts and poisoned
rows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core.types import Request, SamplingParams, ScheduledSequence, StepPlan
from mansard.runtime.logprobs import best_ids, log_normalizer, token_logprobs
from mansard.runtime.random_numbers import uniform
from mansard.runtime.sampler import Sampler, num_logit_rows, row_offsets
from mansard.runtime.token_filters import candidates

GREEDY = SamplingParams(temperature=0.0)


def decode(
    params: SamplingParams,
    prompt: tuple[int, ...] = (1, 2, 3),
    output: tuple[int, ...] = (),
    drafts: tuple[int, ...] = (),
    index: int = 0,
    default_seed: int = 0,
    request_id: str = "r",
) -> ScheduledSequence:
    """Schedule the last known token of a sequence, with drafts to verify behind it."""
    history = [*prompt, *output]
    return ScheduledSequence(
        sequence_id=f"{request_id}/{index}",
        start=len(history) - 1,
        token_ids=(history[-1], *drafts),
        block_ids=(),
        num_logits=1 + len(drafts),
        request=Request(request_id, prompt, params, default_seed=default_seed),
        index=index,
        history=history,
    )


def sample(logits: np.ndarray, *sequences: ScheduledSequence, eos: tuple[int, ...] = ()) -> list:
    rows = np.atleast_2d(np.asarray(logits, np.float32))
    return Sampler(rows.shape[1], eos).sample(StepPlan(tuple(sequences)), rows)


def rows_of(seed: int, num: int, size: int, quantum: float = 0.0) -> np.ndarray:
    """Make logits; a quantum makes ties."""
    values = np.random.default_rng(seed).normal(0, 3, (num, size))
    return (np.round(values / quantum) * quantum if quantum else values).astype(np.float32)


def test_greedy_takes_the_maximum_and_the_lowest_id_among_equals() -> None:
    (result,) = sample([[0.0, 2.0, 2.0, 1.0]], decode(GREEDY))
    assert result.token_ids == (1,)
    assert result.error is None


def test_greedy_ignores_the_filters() -> None:
    row = rows_of(3, 1, 50)
    plain, filtered = (
        sample(row, decode(p))[0] for p in (GREEDY, replace(GREEDY, top_k=3, top_p=0.1, min_p=0.9, seed=5))
    )
    assert plain == filtered


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(logprobs=2, top_p=0.5)])
def test_a_poisoned_row_fails_its_own_sequence_only(poison: float, params: SamplingParams) -> None:
    """NaN must never be taken for the maximum, nor become a stream of token 0."""
    rows = rows_of(1, 3, 40)
    alone = sample(rows[2:], decode(params))[0]
    rows[1, 17] = poison
    first, second, third = sample(rows, decode(params), decode(params), decode(params))
    assert second.token_ids == () and "not finite" in (second.error or "")
    assert first.error is None and third == alone


def test_a_row_without_any_possible_token_is_an_error() -> None:
    assert "not finite" in (sample([[-math.inf, -math.inf]], decode(GREEDY))[0].error or "")
    params = replace(GREEDY, min_tokens=3, stop_token_ids=(0, 1))
    assert "no token is left" in (sample([[1.0, 2.0]], decode(params))[0].error or "")


@given(st.integers(0, 10_000), st.integers(1, 700), st.integers(1, 400), st.sampled_from([0.0, 0.5, 4.0]))
def test_best_ids_is_the_head_of_a_full_sort(seed: int, size: int, count: int, quantum: float) -> None:
    row = rows_of(seed, 1, size, quantum)[0]
    expected = sorted(range(size), key=lambda i: (-row[i], i))[:count]
    assert best_ids(row, count).tolist() == expected


def naive_candidates(row: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """Filter by the definitions, one token at a time, on a fully sorted list."""
    z = (row.astype(np.float64) - row.max()) / params.temperature
    weights = {i: math.exp(v) for i, v in enumerate(z) if math.exp(v) >= params.min_p}
    order = sorted(weights, key=lambda i: (-row[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    total, kept, reached = sum(weights[i] for i in order), [], 0.0
    for i in order:
        if reached >= params.top_p * total:
            break
        kept.append(i)
        reached += weights[i]
    return {i: weights[i] for i in kept}


@settings(max_examples=200)
@given(
    st.integers(0, 10_000),
    st.integers(2, 900),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0, 1, 7, 10**7]),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.05, 1.0]),
)
def test_candidates_match_the_definitions(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = rows_of(seed, 1, size)[0]
    found, expected = candidates(row, params), naive_candidates(row, params)
    ids = np.arange(size) if found.ids is None else found.ids
    # float32 exponentials may move one token across a boundary that float64 puts on the other side, and a
    # running sum that reaches the total early drops a tail of less than 2^-52 of it
    differing = set(ids.tolist()) ^ set(expected)
    assert sum(math.exp((row[i] - row.max()) / temperature) > 1e-9 for i in differing) <= 1
    for i, weight in zip(ids.tolist(), found.weights.tolist(), strict=True):
        # float32 exp of a number with relative error 2^-24 times |z| ≤ 60
        assert weight == pytest.approx(expected.get(i, weight), rel=1e-5)


@given(st.integers(0, 2**64 - 1), st.integers(2, 1500), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_inverse_transform_sampling(seed: int, size: int, unit: float) -> None:
    row = rows_of(seed % 1000, 1, size)[0]
    found = candidates(row, SamplingParams())
    cumulative = np.cumsum(found.weights, dtype=np.float64)
    token = found.draw(unit)
    # block sums round differently from one running sum: float64 over at most 1,500 terms
    slack = 1e-12 * cumulative[-1]
    target = unit * cumulative[-1]
    assert cumulative[token] - found.weights[token] - slack <= target <= cumulative[token] + slack


def test_a_draw_never_takes_a_forbidden_token() -> None:
    row = np.full(600, -math.inf, np.float32)
    row[[5, 300]] = 0.0
    draws = {candidates(row, SamplingParams()).draw(u) for u in (0.0, 0.49, 0.51, 1 - 2**-53)}
    assert draws == {5, 300}


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy_without_overflow(temperature: float) -> None:
    rows = rows_of(4, 1, 100) * 1000
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        result = sample(rows, decode(SamplingParams(temperature=temperature, logprobs=3)))[0]
    assert result.token_ids == (int(rows.argmax()),)
    assert all(math.isfinite(v) for _, v in result.logprobs[0].top)


def test_seeded_draws_do_not_depend_on_neighbours_or_order() -> None:
    rows = rows_of(7, 33, 300)
    sequences = [
        decode(SamplingParams(seed=i, top_p=0.9, presence_penalty=0.3), output=(i, 5), request_id=str(i))
        for i in range(33)
    ]
    together = sample(rows, *sequences)
    order = np.random.default_rng(0).permutation(33)
    shuffled = sample(rows[order], *(sequences[i] for i in order))
    assert [together[i] for i in order] == shuffled
    assert [sample(rows[i], s)[0] for i, s in enumerate(sequences)] == together


def test_the_seed_falls_back_to_the_request_default() -> None:
    rows = rows_of(8, 1, 2000) * 0.1
    explicit = sample(rows, decode(SamplingParams(seed=11)))[0]
    assert sample(rows, decode(SamplingParams(), default_seed=11))[0] == explicit
    assert len({sample(rows, decode(SamplingParams(seed=11), index=i))[0].token_ids for i in range(8)}) > 4


def test_uniform_is_uniform_and_uncorrelated_along_each_coordinate() -> None:
    """Mean 1/2 and lag-1 correlation 0 within 5 standard errors: 20,000 draws, σ(mean) = 1/√(12n)."""
    n = 20_000
    for draws in (
        [uniform(s, 0, 0) for s in range(n)],
        [uniform(3, 0, p) for p in range(n)],
        [uniform(3, i, 9) for i in range(n)],
    ):
        x = np.array(draws)
        assert abs(x.mean() - 0.5) < 5 / math.sqrt(12 * n)
        assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / math.sqrt(n)
        assert np.histogram(x, 20, (0, 1))[0].min() > n / 20 * 0.85


def test_frequencies_follow_the_distribution() -> None:
    """χ² of 40,000 seeded draws over 8 tokens; 35.3 is the 10⁻⁵ quantile at 7 degrees of freedom."""
    row = np.log(np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02], np.float32))
    expected = np.exp(row) / np.exp(row).sum()
    n = 40_000
    found = candidates(row, SamplingParams())
    counts = np.bincount([found.draw(uniform(s, 0, 12)) for s in range(n)], minlength=8)
    assert (((counts - n * expected) ** 2) / (n * expected)).sum() < 35.3


def test_penalties_by_hand() -> None:
    row = [4.0, -2.0, 3.0, 1.0]
    prompt, output = (0, 1), (2, 2)
    params = replace(GREEDY, repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    # 0: 4/2 = 2 · 1: −2·2 = −4 · 2: 3/2 − 0.25 − 2·0.5 = 0.25 · 3: 1
    assert sample([row], decode(params, prompt, output))[0].token_ids == (0,)
    biased = replace(params, logit_bias={0: -3.0})  # 0: (4−3)/2 = 0.5: token 3 wins
    assert sample([row], decode(biased, prompt, output))[0].token_ids == (3,)
    only_output = replace(GREEDY, frequency_penalty=2.0)  # prompt tokens are not counted: 0 keeps its 4
    assert sample([row], decode(only_output, prompt, output))[0].token_ids == (0,)


def test_processors_leave_the_given_logits_alone() -> None:
    rows = rows_of(2, 1, 64)
    before = rows.copy()
    sample(rows, decode(SamplingParams(logit_bias={3: 50.0}, repetition_penalty=1.5, top_k=2, logprobs=1)))
    assert np.array_equal(rows, before)


def test_min_tokens_holds_back_eos_and_stop_ids() -> None:
    row = [1.0, 9.0, 8.0, 0.0]
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(2,))
    choose = lambda p, out: sample([row], decode(p, (0,), out), eos=(1,))[0].token_ids
    assert choose(params, ()) == (0,)
    assert choose(params, (0,)) == (0,)
    assert choose(params, (0, 0)) == (1,)
    assert choose(replace(params, ignore_eos=True), ()) == (1,), "EOS ends nothing when it is ignored"
    assert choose(replace(params, stop_token_ids=(9_999_999,)), ()) == (2,), "ids outside touch nothing"


def test_logprobs_are_of_the_raw_distribution() -> None:
    row = rows_of(5, 1, 97)[0]
    params = SamplingParams(temperature=0.0, logprobs=4, logit_bias={13: 100.0})
    entry = sample(row, decode(params))[0].logprobs[0]
    reference = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    order = sorted(range(97), key=lambda i: -row[i])
    assert entry.token_id == 13 and entry.rank == order.index(13) + 1
    # float32 exponentials of 97 terms: relative error of the sum ≤ 2⁻²³
    assert entry.logprob == pytest.approx(reference[13], abs=1e-5)
    assert [i for i, _ in entry.top] == order[:4]
    assert [v for _, v in entry.top] == pytest.approx(reference[order[:4]].tolist(), abs=1e-5)


def test_impossible_alternatives_are_left_out() -> None:
    row = np.full(32, -math.inf, np.float32)
    row[7] = 3.0
    entry = token_logprobs(row, 7, 5)
    assert entry.top == ((7, pytest.approx(0.0, abs=1e-7)),)
    assert log_normalizer(row) == pytest.approx(3.0)


@given(st.integers(1, 12), st.integers(1, 12))
def test_prompt_logprobs_are_the_same_in_any_chunking(num_prompt: int, chunk: int) -> None:
    prompt = tuple(np.random.default_rng(num_prompt).integers(0, 30, num_prompt).tolist())
    request = Request("r", prompt, replace(GREEDY, prompt_logprobs=2))
    logits = rows_of(num_prompt, num_prompt, 30)
    entries: list = []
    for start in range(0, num_prompt, chunk):
        ids = prompt[start : start + chunk]
        last = start + len(ids) == num_prompt
        part = ScheduledSequence("r/0", start, ids, (), int(last), request, 0, list(prompt))
        assert num_logit_rows(part) in (len(ids), int(last))
        rows = logits[start + len(ids) - num_logit_rows(part) : start + len(ids)]
        result = Sampler(30).sample(StepPlan((part,)), rows)[0]
        entries += result.prompt_logprobs
        assert len(result.token_ids) == int(last)
    assert [e.token_id for e in entries] == list(prompt[1:])
    assert entries == [token_logprobs(logits[j], t, 2) for j, t in enumerate(prompt[1:])]


def test_rows_lie_one_sequence_after_the_other() -> None:
    filling = ScheduledSequence("a/0", 0, (1, 2), (), 0, Request("a", (1, 2, 3), GREEDY), 0, [1, 2, 3])
    plan = StepPlan((filling, decode(GREEDY, drafts=(4, 5)), decode(GREEDY)))
    assert row_offsets(plan) == [0, 0, 3, 4]
    rows = rows_of(0, 4, 20)
    empty, _, last = Sampler(20).sample(plan, rows)
    assert empty.token_ids == () and empty.error is None
    assert last.token_ids == (int(rows[3].argmax()),)


def test_a_wider_logits_row_is_cut_to_the_vocabulary() -> None:
    rows = np.array([[0.0, 1.0, 9.0, math.nan]], np.float32)
    assert Sampler(2).sample(StepPlan((decode(GREEDY),)), rows)[0].token_ids == (1,)


@settings(max_examples=150)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from(
        [
            GREEDY,
            SamplingParams(seed=3),
            SamplingParams(top_p=0.8, frequency_penalty=0.7, repetition_penalty=1.3, seed=4),
            SamplingParams(temperature=0.5, min_tokens=2, logprobs=1, seed=9),
        ]
    ),
)
def test_drafts_change_nothing_but_the_number_of_steps(seed: int, drafts: list[int], params: SamplingParams) -> None:
    """Verified text equals the text of plain decoding, token for token, at every temperature."""
    table = rows_of(seed, 4, 4)  # a bigram model: the row depends on the token before
    plain: list[int] = []
    logprobs: list = []
    for _ in range(len(drafts) + 1):
        part = decode(params, (1, 2), tuple(plain))
        step = sample(table[part.token_ids[-1]], part, eos=(0,))[0]
        plain += step.token_ids
        logprobs += step.logprobs
    part = decode(params, (1, 2), (), tuple(drafts))
    result = sample(table[list(part.token_ids)], part, eos=(0,))[0]
    num_right = next((i for i, d in enumerate(drafts) if d != plain[i]), len(drafts))
    assert list(result.token_ids) == plain[: num_right + 1]
    assert list(result.logprobs) == logprobs[: len(result.logprobs)]


def test_drafts_keep_the_distribution_at_temperature_one() -> None:
    """Point-mass drafts drawn from q: emitted tokens follow p within 4σ and drafts are accepted with
    p(draft).
    """
    p, q = np.array([0.3, 0.5, 0.2]), np.array([0.6, 0.2, 0.2])
    n = 20_000
    drafts = np.random.default_rng(0).choice(3, n, p=q)
    rows = np.log(np.tile(p, (2, 1))).astype(np.float32)
    counts, accepted = np.zeros(3), 0
    for seed, draft in enumerate(drafts.tolist()):
        result = sample(rows, decode(SamplingParams(seed=seed), drafts=(draft,)))[0]
        counts[result.token_ids[0]] += 1
        accepted += len(result.token_ids) == 2
    assert np.all(np.abs(counts / n - p) < 4 * np.sqrt(p * (1 - p) / n))
    rate = float((p * q).sum())
    assert abs(accepted / n - rate) < 4 * math.sqrt(rate * (1 - rate) / n)


def test_a_draft_that_is_only_likely_is_refused_by_greedy() -> None:
    """p(draft) = 0.3, p(other) = 0.5: greedy must emit the other (EAGLE issue 329)."""
    rows = np.log(np.array([[0.3, 0.5, 0.2], [0.3, 0.5, 0.2]], np.float32))
    assert sample(rows, decode(GREEDY, drafts=(0,)))[0].token_ids == (1,)
