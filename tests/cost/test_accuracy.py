"""The published accuracy: cleaning rules, the split, the bars on the unseen half, and the report being up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import accuracy  # noqa: E402
import accuracy_report  # noqa: E402
from accuracy_data import silicon_layout  # noqa: E402
from published_data import engine_name, weight_format  # noqa: E402

from mansard.cost.op_cost import Layout  # noqa: E402


@pytest.fixture(scope="module")
def found() -> accuracy.Evaluation:
    return accuracy.evaluate()


def raw(tp: int, dp: int, moe_tp: int, ep: int, name: str = "2026_x_tp_ep") -> dict[str, str]:
    sizes = {"tp_size": tp, "attention_dp_size": dp, "moe_tp_size": moe_tp, "moe_ep_size": ep}
    return {"id": name, **{key: str(value) for key, value in sizes.items()}}


def test_layouts_are_those_of_the_machines() -> None:
    """The source multiplies sizes: its "tp 64, moe 8 x 8" ran on eight GPUs."""
    assert silicon_layout(raw(8, 1, 8, 1)) == Layout(8)
    assert silicon_layout(raw(64, 1, 8, 8)) == Layout(8, expert_parallel=8)
    assert silicon_layout(raw(4, 4, 1, 16)) == Layout(1, 1, 4, 4)
    assert silicon_layout(raw(1, 16, 4, 4)) == Layout(1, 1, 4, 4)
    assert silicon_layout(raw(4, 1, 2, 2, "x_epnone_1")) == Layout(4, expert_parallel=2)
    assert silicon_layout(raw(72, 1, 72, 1)) is None


def test_labels_are_read_as_the_sources_mean_them() -> None:
    assert weight_format("int4-g128 (AWQ)", "A100") == "int4-g128-zp"
    assert weight_format("gptq-int8", "A100") == "int8-g128"
    assert weight_format("fp4", "B200") == "nvfp4" and weight_format("fp4", "MI355X") == "mxfp4"
    assert engine_name("vLLM 0.6.3") == "vllm-v0" and engine_name("vLLM 0.19.1") == "vllm"
    assert engine_name("Transformers-NeuronX (Neuron SDK 2.18.0)") == "neuronx"


def test_no_cell_is_in_both_halves_and_the_halves_are_alike_in_size(found: accuracy.Evaluation) -> None:
    cells: dict[tuple[str, str], set[bool]] = {}
    for row in found.rows:
        cells.setdefault((row.model, row.gpu), set()).add(row.in_training_half)
    assert all(len(halves) == 1 for halves in cells.values())
    share = np.mean([row.in_training_half for row in found.rows])
    assert 0.4 < share < 0.6


def test_nothing_is_dropped_but_for_a_counted_reason(found: accuracy.Evaluation) -> None:
    """3,619 aggregated serving points and 2,084 published rows went in."""
    lost = found.dropped["faster than the speed of light (weights and KV over the bandwidth)"]
    assert len(found.rows) + sum(found.dropped.values()) - lost == 3619 + 2084


def test_predictions_respect_the_speed_of_light(found: accuracy.Evaluation) -> None:
    """No prediction beats the row's own lower bound, and every one is finite."""
    for metric in ("tpot", "ttft", "throughput"):
        assert np.all(np.isfinite(found.predicted[metric])) and np.all(found.predicted[metric] > 0)


def test_bars_hold_on_the_unseen_half(found: accuracy.Evaluation) -> None:
    lost = [bar for bar in accuracy.bars(found) if not bar.holds and not bar.known_to_fail]
    assert not lost, lost


def test_the_report_is_up_to_date(found: accuracy.Evaluation) -> None:
    reached = accuracy.bars(found)
    text = accuracy_report.render(found, reached, accuracy.swapped_bars(), accuracy.sections(found))
    assert not accuracy.is_stale(accuracy.DOCS.read_text(encoding="utf-8"), text)


def test_staleness_forgives_the_last_digit_only() -> None:
    assert not accuracy.is_stale("error 9.0 %", "error 9.1 %")
    assert accuracy.is_stale("error 9.0 %", "error 9.3 %")
    assert accuracy.is_stale("error 9.0 %", "error of 9.0 %")
