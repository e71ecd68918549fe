"""Energy: counters that rise, wrap, fail or are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mansard.bench.energy import EnergyCounter, EnergyMeter, gpu_counters, host_counters


def zone(root: Path, folder: str, name: str, energy_uj: int, wraps_uj: int = 10_000_000) -> Path:
    path = root / folder
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{wraps_uj}\n")
    return path / "energy_uj"


def test_packages_and_memory_count_once_and_wrap(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 1_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)  # part of its package
    zone(tmp_path, "intel-rapl:2", "psys", 5)  # all of the machine
    with EnergyMeter(host_counters(tmp_path)) as meter:
        first.write_text("500000\n")  # 1 J to the wrap at 10 J and 0.5 J after it
        second.write_text("3000000\n")
        memory.write_text("250000\n")
    assert meter.energy.joules == pytest.approx(1.5 + 2.0 + 0.25)
    assert meter.energy.source == "RAPL package-0, RAPL dram, RAPL package-1"
    assert meter.energy.per_token(10) == pytest.approx(0.375) and meter.energy.per_token(0) is None
    second.write_text("8000000\n")  # between two runs nothing counts
    with meter:
        second.write_text("9000000\n")
    assert meter.energy.joules == pytest.approx(4.75)
    assert "0.475 J/token" in meter.energy.text(10)


def test_what_cannot_be_read_is_no_number(tmp_path: Path) -> None:
    assert host_counters(tmp_path) == []
    with EnergyMeter([]) as meter:
        pass
    assert meter.energy.joules is None and meter.energy.text(5).startswith("not readable")
    assert meter.energy.to_dict(5)["joules_per_output_token"] is None
    path = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    with EnergyMeter(host_counters(tmp_path)) as broken:
        path.unlink()
    assert broken.energy.joules is None and "failed" in broken.energy.source


def test_gpus_count_where_pynvml_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_counters() == []

    class NVMLError(Exception):
        pass

    millijoules: dict[str, Any] = {"a": 1000, "b": 5000}
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex="ab".__getitem__,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: millijoules[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with EnergyMeter(gpu_counters()) as meter:
        millijoules.update(a=3000, b=5500)
    assert meter.energy.joules == pytest.approx(2.5) and meter.energy.source == "NVML gpu 0, NVML gpu 1"


def test_a_long_run_reads_in_between() -> None:
    """Two wraps between start and end would be lost without the readings in between."""
    values = iter([0.0, 8.0, 2.0, 9.0])
    meter = EnergyMeter([EnergyCounter("x", lambda: next(values), 10.0)])
    for _ in range(4):
        meter.read()
    assert meter.energy.joules == pytest.approx(8.0 + 4.0 + 7.0)
