"""The soak in small: a toy model, a pool of 12 blocks, some seconds of every kind of client."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from toy_model import ToyExecutor, toy_model

from mansard.runtime.model import EngineOptions

PATH = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    found = importlib.util.spec_from_file_location("soak", PATH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["soak"] = module
    found.loader.exec_module(module)
    return module


def run(soak: ModuleType, executor: ToyExecutor, seconds: float) -> dict[str, Any]:
    model = toy_model(executor, num_blocks=40, max_model_len=1024)
    options = EngineOptions(max_num_seqs=16, max_num_batched_tokens=64)
    found: dict[str, Any] = asyncio.run(soak.soak(model, options, seconds, 30, 40, seed=1))
    return found


def test_nothing_is_wrong_after_some_seconds_of_everything(soak: ModuleType) -> None:
    found = run(soak, ToyExecutor(), 8.0)
    # Memory is judged over minutes; in seconds the interpreter's own arenas still grow by a few percent.
    assert [line for line in found["wrong"] if not line.startswith("memory")] == []
    assert {"plain", "streamed", "left", "half-closed", "rubbish"} <= set(found["requests"])
    assert found["num_preemptions"] > 0 and found["prefix_hit_rate"] > 0.1


def test_the_soak_notices_what_is_wrong(soak: ModuleType) -> None:
    """A model whose greedy answers depend on what runs beside them, in a pool that leaks nothing."""
    executor = ToyExecutor()
    executor.script = lambda part, place: 97 + len(executor.plans[-1].sequences) if place > 2 else None
    found = run(soak, executor, 1.5)
    assert any("differs from the one alone" in line for line in found["wrong"])


def test_growth_compares_quarters(soak: ModuleType) -> None:
    flat = [(float(i), 100) for i in range(40)]
    assert soak.rss_growth(flat) == 0.0
    assert soak.rss_growth([(t, 100 + int(t)) for t, _ in flat]) == pytest.approx(0.174, abs=0.01)
    assert soak.rss_growth(flat[:4]) == 0.0
