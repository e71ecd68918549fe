"""Workloads, length distributions and service levels."""

import tomllib
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.specs.lengths import LengthDistribution
from mansard.specs.slo import Slo, parse_slo, slos
from mansard.specs.workload import Workload, find_workload, published_rate, workloads


@pytest.mark.parametrize("name", ["chat", "rag", "code", "summarize", "agent", "reasoning", "offline"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_named_distributions_reproduce_the_published_means(name, side):
    file = resources.files("mansard.specs") / "presets" / "workloads.toml"
    entry = tomllib.loads(file.read_text(encoding="utf-8"))[name]
    # Four or five quantiles hold the mean to a quarter; azure2023-conv's prompts to 1 %.
    assert LengthDistribution.from_quantiles(entry[side]).mean == pytest.approx(entry[side]["mean"], rel=0.25)


def test_chat_is_the_azure_trace():
    chat = find_workload("chat")
    assert chat.mean_input_tokens == pytest.approx(1154.7, rel=0.01)
    assert chat.input_tokens.quantile(0.5) == pytest.approx(1020)
    assert chat.max_model_len == 15_050
    assert published_rate("chat") == 5.53 and published_rate("offline") is None
    assert all(w.source and w.rate_req_s is None for w in workloads().values())


def test_lengths_can_be_written_and_are_validated():
    given_lengths = find_workload("1024/512")
    assert (given_lengths.mean_input_tokens, given_lengths.mean_output_tokens) == (1024, 512)
    with pytest.raises(ValueError, match=r"chatt.*chat"):
        find_workload("chatt")
    with pytest.raises(ValueError, match="not both"):
        Workload.from_lengths(10, 10, rate_req_s=1.0, concurrency=2)
    for wrong in (
        {"rate_req_s": 0.0},
        {"concurrency": 0},
        {"prefix_reuse": 1.0},
        {"shared_prefix_tokens": 11},
    ):
        with pytest.raises(ValueError, match="must"):
            Workload.from_lengths(10, 10, **wrong)


def test_driving_numbers_replace_each_other_and_prefixes_count():
    base = Workload.from_lengths(1000, 100, shared_prefix_tokens=400)
    assert base.cached_share == pytest.approx(0.4)
    assert base.at_rate(2.0).at_concurrency(8).rate_req_s is None
    assert find_workload("agent").cached_share == 0.64


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=200))
def test_an_empirical_distribution_keeps_order_range_and_roughly_the_mean(lengths):
    found = LengthDistribution.from_lengths(lengths)
    grid = found.grid(64)
    assert list(grid) == sorted(grid)
    assert found.minimum == min(lengths) and found.maximum == max(lengths)
    assert found.minimum <= found.mean <= found.maximum * (1 + 1e-9)


def test_an_empirical_distribution_of_many_lengths_keeps_the_mean():
    lengths = [1 + (i * 7919) % 1000 for i in range(5000)]
    # 1,001 log-linear segments of a uniform sample: the interpolation error is far below 1 %.
    assert LengthDistribution.from_lengths(lengths).mean == pytest.approx(sum(lengths) / 5000, rel=0.01)


def test_wrong_quantiles_are_refused():
    for points in (
        ((0.0, 1.0),),
        ((0.1, 1.0), (1.0, 2.0)),
        ((0.0, 5.0), (1.0, 2.0)),
        ((0.0, 0.0), (1.0, 2.0)),
    ):
        with pytest.raises(ValueError, match="must rise"):
            LengthDistribution(points)


def test_mlperf_limits_are_those_of_the_rules():
    level = parse_slo("mlperf-llama2-70b-interactive")
    assert (level.ttft_s, level.tpot_s, level.percentile) == (0.450, 0.040, 99.0)
    assert len(slos()) == 11
    server = parse_slo("mlperf-llama3.1-405b-server")
    assert (server.ttft_s, server.tpot_s) == (6.0, 0.175)


def test_limits_as_people_write_them():
    assert parse_slo("ttft=450ms, tpot=40ms, p95") == Slo(0.45, 0.04, 95.0, name="ttft=450ms, tpot=40ms, p95")
    assert parse_slo("tpot=0.05").ttft_s is None
    for wrong in ("ttft=fast", "ttft=1,q9", "tpot=0"):
        with pytest.raises(ValueError, match=r"cannot read|above 0"):
            parse_slo(wrong)
    with pytest.raises(ValueError, match="mlperf-mixtral-8x7b-server"):
        parse_slo("mlperf-mixtral-server")


def test_a_level_is_met_at_its_limits_and_one_token_replies_have_no_tpot():
    level = Slo(1.0, 0.05)
    assert level.is_met(1.0, 0.05) and level.is_met(0.5, None)
    assert not level.is_met(1.01, 0.01) and not level.is_met(0.5, 0.06)
