"""Results survive their file, and comparisons refuse what cannot be compared."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from bench.streams import record

from mansard.bench.compare import compare_results
from mansard.bench.html import render_serve
from mansard.bench.records import RequestRecord
from mansard.bench.result import BenchResult, read_records, read_result
from mansard.bench.statistics import Estimate
from mansard.bench.summary import summarize
from mansard.bench.thresholds import Threshold, latency_threshold, parse_duration_s
from mansard.specs.slo import Slo

WHERE = {"processor": "x", "num_cores": 2, "mansard": "0", "created": "now", "command": "mansard bench"}


def result(ttft: float = 0.5, failed: int = 0, tokens: int = 10, **workload: Any) -> BenchResult:
    records = [record(i, at=0.1 * i, ttft=ttft + 0.001 * (i % 7), gap=0.01, tokens=tokens) for i in range(60)]
    records += [record(100 + i, ttft=None, error="http 503") for i in range(failed)]
    asked = {"name": "x", "nonce": 1, "num_requests": 60, **workload}
    summary = summarize(records, Slo(ttft_s=1.0))
    return BenchResult("serve", WHERE, {"model": "m", "url": "u"}, asked, summary, summary.warnings, {}, records)


def table(found: BenchResult) -> dict[str, Any]:
    return dict(json.loads(found.to_json()))


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(result(failed=3).to_json())
    back = read_result(path)
    records: list[RequestRecord] = read_records(back)
    again = summarize(records, Slo(ttft_s=1.0))
    assert again == result(failed=3).summary
    assert back["summary"]["success"]["causes"] == {"http 503": 3}
    assert back["summary"]["goodput"]["attainment"] == pytest.approx(60 / 63)
    path.write_text("{}")
    with pytest.raises(ValueError, match="mansard-bench/1"):
        read_result(path)


def test_csv_and_html_show_every_request_and_need_nothing_else() -> None:
    lines = list(csv.DictReader(io.StringIO(result(failed=1).to_csv())))
    assert len(lines) == 61 and lines[0]["output_tokens"] == "10" and lines[-1]["cause"] == "http 503"
    page = render_serve(result(failed=1))
    assert page.count("<svg") == 4 and "<script" not in page and "http://" not in page
    assert "98.4%" in page


def test_slower_beyond_the_noise_is_worse() -> None:
    found = {d.metric: d for d in compare_results(table(result(0.5, nonce=1)), table(result(0.7, nonce=2)))}
    assert found["ttft mean"].verdict == "worse" and found["ttft mean"].ratio == pytest.approx(0.703 / 0.503, rel=0.01)
    assert found["tpot mean"].verdict == "same within noise"
    assert {d.verdict for d in compare_results(table(result()), table(result()))} <= {"same within noise", "unknown"}
    faster = {d.metric: d for d in compare_results(table(result(0.7)), table(result(0.5)))}
    assert faster["ttft p50"].verdict == "better"


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (result(failed=40), "success rates differ: 100.0% and 60.0%"),
        (result(tokens=5), "outputs differ in length"),
        (result(num_requests=61), "workloads differ in num_requests"),
        (BenchResult("offline", WHERE, {}, {}), "bench serve"),
    ],
)
def test_runs_that_did_not_do_the_same_are_refused(other: BenchResult, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        compare_results(table(result()), table(other))


def test_thresholds() -> None:
    summary = result().summary
    assert summary is not None
    assert latency_threshold(summary, "ttft", 99, 0.6).holds
    broken = latency_threshold(summary, "ttft", 99, 0.1)
    assert not broken.holds and "BROKEN" in broken.line() and "max-ttft-p99" in broken.line()
    assert not Threshold("max-tpot-p99", None, 1.0).holds  # not measured
    assert Threshold("min-success", Estimate(0.99), 0.99, True).holds
    assert [parse_duration_s(t) for t in ("450ms", "0.45 s", "0.45", "450us")] == pytest.approx(
        [0.45, 0.45, 0.45, 4.5e-4]
    )
    with pytest.raises(ValueError, match="450ms"):
        parse_duration_s("fast")
