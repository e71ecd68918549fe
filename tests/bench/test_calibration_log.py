"""Results appended to a calibration: the fit reads their steps and passes over the comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_model import toy_model

from mansard.bench.calibration_log import append_calibration, comparison_lines, nearest_format, step_lines
from mansard.bench.compared import Compared
from mansard.bench.engine_run import EngineRun, StepTiming
from mansard.bench.result import BenchResult
from mansard.sim.fitting import fit, step_errors
from mansard.sim.replay import read_run, replay

HEAD = {"model": "toy", "weights": "q8_0", "kv": "bf16"}
RESULT = BenchResult("offline", {"created": "now"}, {"model": "toy", "threads": 2, "secret": 1}, {"name": "8/6"})


def run(batch: int = 2, count: int = 15) -> EngineRun:
    """A prompt step, then decodes of 10 ms back to back."""
    first = StepTiming(0, 8 * batch, 8 * batch, 0.03, 0.001, start_s=1.0, sequences=prompts(batch))
    later = [
        StepTiming(
            batch, 0, batch * (9 + i), 0.008, 0.001, start_s=1.04 + 0.01 * i,
            sequences=tuple((f"{s}/0", 8 + i, 1, 1) for s in range(batch)),
        )
        for i in range(count)
    ]  # fmt: skip
    return EngineRun((), (first, *later), 1.0)


def prompts(batch: int) -> tuple[tuple[str, int, int, int], ...]:
    return tuple((f"{s}/0", 0, 8, 1) for s in range(batch))


def test_what_is_appended_can_be_fitted(tmp_path: Path) -> None:
    from mansard.cost.serving import Layout, PrecisionPlan, priced_program
    from mansard.specs.hardware_catalogue import find_hardware

    path = tmp_path / "c.jsonl"
    row = Compared("decode_step_s", 0.012, 0.010)
    for name in ("a", "b"):
        lines = step_lines([run()], name) + comparison_lines(RESULT, [row], "batch 2")
        append_calibration(path, HEAD, lines)
    recorded = read_run(path)
    assert recorded.head["model"] == "toy" and len(recorded.steps) == 32
    # 14 of 15 decodes are followed by another of their own run, and each prompt step by the first decode
    timed = [s.cycle_s for s in recorded.steps if s.cycle_s is not None]
    assert sorted(timed) == pytest.approx([0.01] * 28 + [0.04] * 2)
    priced = priced_program(toy_model().spec, find_hardware("h100"), Layout(), PrecisionPlan())
    found = fit(priced, recorded.steps)
    assert found.num_steps == 30 and found.median_error < abs(step_errors(priced, recorded.steps)).mean()
    with pytest.raises(ValueError, match="cannot be replayed"):
        replay(recorded)
    compared = [json.loads(line) for line in path.read_text().splitlines() if '"compared"' in line]
    assert [c["error"] for c in compared] == pytest.approx([0.2, 0.2])
    assert compared[0]["target"] == {"model": "toy", "threads": 2} and compared[0]["workload"] == "batch 2"


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    append_calibration(path, HEAD, [])
    with pytest.raises(ValueError, match="another file"):
        append_calibration(path, {**HEAD, "model": "other"}, [])
    path.write_text("model,rate\n")
    with pytest.raises(ValueError, match="no calibration"):
        append_calibration(path, HEAD, [])
    assert path.read_text() == "model,rate\n"


@pytest.mark.parametrize(("bits", "name"), [(32, "fp32"), (15.9, "bf16"), (8.6, "q8_0"), (5.4, "q5_k"), (4.6, "q4_k")])
def test_mixed_files_go_by_their_mean_width(bits: float, name: str) -> None:
    assert nearest_format(bits) == name
