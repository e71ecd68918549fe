"""What a simulation writes: the summary beside the bench's own metrics, CSV, Perfetto trace, page and charts."""

import csv
import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.bench import metrics
from mansard.bench.records import Chunk, RequestRecord
from mansard.sim.deployment import Deployment
from mansard.sim.experiment import Experiment, TrafficPlan
from mansard.sim.export import write_csv, write_perfetto
from mansard.sim.report import render
from mansard.sim.summary import Spread, summarize
from mansard.sim.svg import Mark, Series, line_chart
from mansard.sim.timeline import Timeline
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset
from mansard.specs.slo import Slo

SLO = Slo(ttft_s=0.2, tpot_s=0.02, percentile=90.0)


@pytest.fixture(scope="module")
def experiment():
    deployment = Deployment(preset("llama-3.1-8b"), find_hardware("h100-sxm"), num_replicas=2)
    return Experiment("", deployment, TrafficPlan(workload="chat", rate_req_s=30.0, count=200, seed=2), slo=SLO)


@pytest.fixture(scope="module")
def result(experiment):
    return experiment.run()


def record(index, outcome):
    """The bench's record of a simulated request: its first token, and all others at its end."""
    chunks = [Chunk(outcome.first_token_s, 1)]
    if outcome.num_output_tokens > 1:
        chunks.append(Chunk(outcome.end_s, outcome.num_output_tokens - 1))
    return RequestRecord(
        index, outcome.arrival_s, outcome.arrival_s, outcome.first_token_s, tuple(chunks), outcome.end_s,
        outcome.num_prompt_tokens, outcome.num_cached_tokens, outcome.num_output_tokens, outcome.reason,
    )  # fmt: skip


def test_the_metrics_are_the_benchs(result):
    """Simulator and bench must mean the same by a word."""
    summary = summarize(result, SLO)
    records = [record(i, outcome) for i, outcome in enumerate(result.requests)]
    for outcome, seen in zip(result.requests, records, strict=True):
        assert metrics.ttft_s(seen) == outcome.ttft_s
        assert metrics.tpot_s(seen) == outcome.tpot_s
        assert metrics.e2e_s(seen) == outcome.e2e_s
    good = metrics.goodput(records, SLO, summary.duration_s)
    assert good.requests_per_s == pytest.approx(summary.goodput_req_s, rel=1e-12)
    assert good.attainment == summary.slo_share
    assert 0.0 < summary.slo_share < 1.0, "an SLO that all or none meet tests nothing"


def test_the_summary_adds_up(result):
    summary = summarize(result, SLO)
    tokens = sum(r.num_output_tokens for r in result.requests)
    assert summary.output_tokens_per_s * summary.duration_s == pytest.approx(tokens)
    assert summary.num_steps == sum(lane.timeline.num_steps for lane in result.replicas)
    busy = sum(float(lane.timeline.durations_s().sum()) for lane in result.replicas)
    assert summary.busy_share == pytest.approx(busy / summary.duration_s / 2)
    usd = result.deployment.usd_per_hour()
    assert summary.usd_per_million_output_tokens == pytest.approx(usd / 3600 * summary.duration_s / tokens * 1e6)
    # Little's law over the whole run, in which every request begins and ends: ∫ running = Σ time since scheduled.
    running = sum(
        float((lane.timeline.by_step("num_running") * lane.timeline.durations_s()).sum()) for lane in result.replicas
    )
    assert running == pytest.approx(sum(r.end_s - r.first_scheduled_s for r in result.requests), rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(1, 5)), min_size=1, max_size=30))
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs):
    values, counts = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, counts.astype(int))
    spread = Spread.weighted(values, counts)
    for percentile in (50, 90, 99):
        expected = np.percentile(repeated, percentile, method="inverted_cdf")
        assert spread.at(percentile) == expected
    assert spread.mean == pytest.approx(repeated.mean()) and spread.max == repeated.max()


def test_nothing_measured_is_not_zero():
    assert math.isnan(Spread.of([]).p50)
    assert Spread.of([1.0]).at(42.0) is None


def test_the_csv_has_every_request(result, tmp_path):
    path = tmp_path / "requests.csv"
    write_csv(path, result)
    rows = list(csv.DictReader(path.open()))
    assert [row["id"] for row in rows] == [r.id for r in result.requests]
    assert float(rows[3]["ttft_s"]) == result.requests[3].ttft_s
    single = [row for row in rows if row["num_output_tokens"] == "1"]
    assert all(row["tpot_s"] == "" for row in single)


def test_the_perfetto_trace_covers_every_step_and_request(result, tmp_path):
    path = tmp_path / "trace.json"
    write_perfetto(path, result)
    events = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert sum(e["args"]["steps"] for e in slices) == sum(lane.timeline.num_steps for lane in result.replicas)
    busy = sum(float(lane.timeline.durations_s().sum()) for lane in result.replicas)
    assert sum(e["dur"] for e in slices) == pytest.approx(busy * 1e6)
    assert {e["ph"] for e in events} == {"M", "X", "C", "b", "e"}
    assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events) == 3 * len(result.requests)


def test_the_page_stands_alone_and_its_charts_are_well_formed(experiment, result):
    page = render(experiment, result, summarize(result, SLO))
    assert "<script" not in page and "http" not in page and "src=" not in page
    charts = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(charts) == 6
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert any(element.get("class", "").startswith("line") for element in root)
        for path in root.iter("path"):
            numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", path.get("d"))]
            assert all(math.isfinite(n) and -1.0 <= n <= 561.0 for n in numbers), "a line leaves its chart"
    assert "goodput" in page and "SLO" in page


def test_names_in_charts_are_escaped():
    chart = line_chart("a < b", [Series("<x>", [0.0, 1.0], [1.0, 2.0])], "x", "y", marks=[Mark("&", 0.5)])
    assert "<x>" not in chart and "&lt;x&gt;" in chart and "a &lt; b" in chart


def test_a_chart_of_nothing_says_so():
    assert "nothing to show" in line_chart("empty", [Series("a", [], [])], "x", "y")


def test_a_timeline_without_steps_is_empty():
    timeline = Timeline()
    assert len(timeline) == 0 and len(timeline.durations_s()) == 0 and timeline.gaps_s()[0].size == 0
    timeline.add(1.0, 2, 3, 0, 3, 3, 0, 30, 5, 0)
    timeline.step_ends_s.extend([1.5, 2.5])
    (segment, ends), *rest = timeline.segments()
    assert not rest and segment.num_steps == 2 and segment.start_s == 1.0 and ends.tolist() == [1.5, 2.5]
    assert timeline.durations_s().tolist() == [0.5, 1.0]
    assert timeline.by_step("num_running").tolist() == [3.0, 3.0]
