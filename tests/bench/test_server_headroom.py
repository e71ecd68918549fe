"""A foreign server's headroom: the prediction of the load that was measured, and what the difference is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import toy_server

from mansard.bench.compared import Compared
from mansard.bench.records import Chunk, Phase, RequestRecord
from mansard.bench.result import BenchResult
from mansard.bench.server_headroom import ServedOn, server_headroom
from mansard.bench.summary import summarize
from mansard.cli import main
from mansard.cost.serving import estimate
from mansard.specs.hardware_catalogue import parse_hardware
from mansard.specs.model_presets import preset

SERVED = ServedOn(preset("llama-3.1-8b"), *parse_hardware("h100:2"))
CLOSED: Mapping[str, Any] = {"max_concurrency": 4}


def result(ttft_s: float, tpot_s: float, workload: Mapping[str, Any] = CLOSED) -> BenchResult:
    """Four requests at once of 1,000 + 100 tokens, again and again."""
    records = []
    for i in range(40):
        start = (i // 4) * (ttft_s + 99 * tpot_s)
        chunks = tuple(Chunk(start + ttft_s + k * tpot_s, 1) for k in range(100))
        records.append(
            RequestRecord(
                i, start, start, chunks=chunks, closed_s=chunks[-1].time_s, num_prompt_tokens=1000,
                num_output_tokens=100, finish_reason="length", phase=Phase.MEASURED,
            )
        )  # fmt: skip
    return BenchResult("serve", {}, {}, workload, summarize(records), records=records)


def expected() -> Any:
    return estimate(
        SERVED.spec, SERVED.hardware, num_devices=2, input_tokens=1000.0, output_tokens=100.0, concurrency=4.0
    )


def test_a_run_as_predicted_has_no_error_and_names_the_bound() -> None:
    found = expected()
    report = server_headroom(result(found.ttft_s.best, found.tpot_s.best), SERVED)
    assert report.row("ttft_s").error == pytest.approx(0.0, abs=1e-9)
    assert report.row("tpot_s").error == pytest.approx(0.0, abs=1e-9)
    assert all(row.is_within for row in report.rows)
    assert report.mbu == pytest.approx(found.mbu * found.itl_s / found.tpot_s.best)
    assert report.mfu / report.row("output_tokens_per_s").measured == pytest.approx(
        found.mfu / found.output_tokens_per_s.best
    )
    floor = max(report.parts["floor: memory bandwidth"], report.parts["floor: compute"])
    later = list(report.parts.values())[2:]
    assert floor + sum(later) == pytest.approx(found.tpot_s.best)
    # two bytes a weight, but for the input embedding, from two devices of 3.35 TB/s
    weights = (8.03e9 - 128256 * 4096) * 2.0 / 2.0
    assert report.parts["floor: memory bandwidth"] == pytest.approx(weights / 3.35e12, rel=0.05)
    assert "memory bounds the step" in report.sentence()


def test_slower_faster_and_impossible_runs_are_named() -> None:
    found = expected()
    slow = server_headroom(result(found.ttft_s.best, 2 * found.tpot_s.best), SERVED)
    assert "the engine's own" in slow.sentence() and not slow.row("tpot_s").is_within
    assert slow.parts["beyond the prediction"] == pytest.approx(found.tpot_s.best)
    fast = server_headroom(result(found.ttft_s.best, 0.7 * found.tpot_s.best), SERVED)
    assert "speculation" in fast.sentence()
    wrong = server_headroom(result(found.ttft_s.best, 0.1 * found.tpot_s.best), SERVED)
    assert "faster than the hardware allows" in wrong.sentence() and wrong.mbu > 1.05


def test_an_open_loop_is_compared_at_what_was_in_flight() -> None:
    found = expected()
    given = result(found.ttft_s.best, found.tpot_s.best, {"rate_req_s": 3.0})
    assert given.summary is not None and given.summary.little is not None
    report = server_headroom(given, SERVED)
    assert report.prediction.concurrency == pytest.approx(max(1.0, given.summary.little.in_flight))
    with pytest.raises(ValueError, match="nothing to compare"):
        server_headroom(replace(given, summary=None), SERVED)


def test_an_error_is_of_the_measured() -> None:
    row = Compared("tpot_s", 0.9, 1.2)
    assert row.error == pytest.approx(-0.25) and row.is_within is None and row.to_dict()["interval"] is None


def test_the_command_predicts_beside_measuring(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, calibration = tmp_path / "r.json", tmp_path / "c.jsonl"
    files = ("--json", str(saved), "--append-calibration", str(calibration))
    with toy_server(ToyExecutor(step_s=0.02)) as server:
        common = ("bench", "serve", server.url, "--workload", "8/6", "-n", "6", "-c", "2", "--tokenizer", "words")
        with pytest.raises(SystemExit) as ended:
            main([*common, "--gpu", "h100:2", "--priced-as", "llama-3.1-8b", *files])
        assert not ended.value.code
        assert "MBU" in (out := capsys.readouterr().out) and "output_tokens_per_s" in out
        prediction = json.loads(saved.read_text())["prediction"]
        assert [row["metric"] for row in prediction["rows"]] == ["ttft_s", "tpot_s", "output_tokens_per_s"]
        assert calibration.read_text().count('"event":"compared"') == 3
        for wrong, word in ((("--gpu", "h100:2"), "--priced-as"), (("--gpu", "abacus"), "abacus"), (files, "--gpu")):
            extra = () if word == "--priced-as" else ("--priced-as", "llama-3.1-8b")
            with pytest.raises(SystemExit) as ended:
                main([*common, *wrong, *extra])
            assert ended.value.code == 2 and word in capsys.readouterr().err
