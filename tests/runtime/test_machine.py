"""What this machine offers: cores and memory as containers limit them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mansard.runtime import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder for the container's limits."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_cores_are_those_of_the_affinity_mask(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_core_of", lambda cpu: cpu // 2)  # two threads a core
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5}, raising=False)
    assert machine.num_usable_cores() == 3


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("200000 100000", 2), ("50000 100000", 1), ("", 4)])
def test_a_quota_limits_cores(quota: str, cores: int, cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_core_of", lambda cpu: cpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    (cgroup / "cpu.max").write_text(quota)
    assert machine.num_usable_cores() == cores


def test_there_is_always_a_core(cgroup: Path) -> None:
    assert 1 <= machine.num_usable_cores() <= (os.cpu_count() or 1)


def test_memory_is_what_the_container_leaves(cgroup: Path) -> None:
    free = machine.available_memory_bytes()
    assert free > 0
    (cgroup / "memory.max").write_text("5000000\n")
    (cgroup / "memory.current").write_text("2000000\n")
    assert machine.available_memory_bytes() == 3_000_000
    (cgroup / "memory.current").write_text("6000000\n")
    assert machine.available_memory_bytes() == 0
    (cgroup / "memory.max").write_text("max\n")
    assert machine.available_memory_bytes() > 3_000_000
