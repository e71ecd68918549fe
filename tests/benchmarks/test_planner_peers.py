"""The comparison with other planners: what each is refused, and that every compared row has a recorded answer.

The planners themselves are not installed here: the adapters are built without their packages.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b", "config": {"model_type": "llama"}, "parameters": 8_030_261_248, "sparse": False,
    "gpu": "H100-SXM-80GB", "engine": "vllm", "weights": "bf16", "kv": "bf16", "isl": 921.6, "osl": 921.6,
    "concurrency": 1.0, "tp": 1, "dp": 1, "pp": 1, "ep": 1, "ranks": 1,
}  # fmt: skip


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize(
    ("planner", "change", "reason"),
    [
        ("Servcalc", {"ranks": 2}, "more than one GPU"),
        ("Servcalc", {"sparse": True}, "mixture of experts"),
        ("Servcalc", {"gpu": "GB200-186GB"}, "GPU it does not list"),
        ("Ridgepoint", {"concurrency": 4.0}, "more than one request at a time"),
        ("Ridgepoint", {"weights": "nvfp4"}, "weight format it does not list"),
        ("AIConfigurator", {"gpu": "RTX4090-24GB"}, "GPU without kernel data"),
        ("AIConfigurator", {"engine": "llama.cpp"}, "engine it does not know"),
    ],
)
def test_what_a_planner_cannot_express_has_a_reason(
    load: Any, planner: str, change: dict[str, object], reason: str
) -> None:
    adapters: ModuleType = load("planner_peer_adapters")
    adapter = object.__new__(getattr(adapters, planner))
    if planner == "Servcalc":
        adapter._servcalc = type("Stub", (), {"Workload": lambda *args: None})
    with pytest.raises(adapters.NotCoveredError, match=reason):
        adapter.ask({**QUESTION, **change})


def test_aiconfigurator_asks_again_only_where_kernel_data_is_missing(load: Any) -> None:
    """A refusal for any other cause (it does not fit) is the answer; the first reason is the one that is told."""
    adapters: ModuleType = load("planner_peer_adapters")
    asked: list[object] = []

    def refuse(*args: object, **formats: object) -> None:
        asked.append(formats.get("kvcache_quant_mode"))
        raise RuntimeError("MoE data missing" if len(asked) < 2 else "OOM: does not fit in GPU memory")

    adapter = object.__new__(adapters.AIConfigurator)
    adapter._estimate = refuse
    with pytest.raises(adapters.NotCoveredError, match="no kernel data: experts"):
        adapter.ask({**QUESTION, "model": "minimax-m2", "weights": "fp8", "sparse": True, "gemm": "fp8", "moe": "fp8"})
    assert asked == ["bfloat16", None]


def test_every_compared_row_has_an_answer_or_a_reason_of_every_planner(load: Any) -> None:
    peers: ModuleType = load("planner_peers")
    found = peers.evaluate()
    rows = peers.compared(found)
    for peer in peers.recorded(found):
        answered = {i for i in rows if peer.covered[i]}
        assert answered.isdisjoint(peer.reasons)
        assert answered | set(peer.reasons) == set(rows)
        assert len(answered) > 200


def test_mansards_line_has_the_errors_of_the_accuracy_report(load: Any) -> None:
    """On the same rows, the comparison's TPOT error of Mansard is the one that accuracy.md prints."""
    peers: ModuleType = load("planner_peers")
    found = peers.evaluate()
    mine = next(line for line in peers.lines(found, peers.recorded(found)[:1], "closed-loop", ("tpot",))
                if line.planner == "mansard")  # fmt: skip
    keep = found.select(scenario="closed-loop", half="unseen") & peers.recorded(found)[0].covered
    assert mine.numbers["tpot"][0] == pytest.approx(100 * np.median(np.abs(found.errors("tpot", keep))))
