"""This machine as the executor sees it: how many threads to run and how much memory there is to take.

Containers are respected: affinity masks and cgroup limits count, not what the host has.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def num_usable_cores() -> int:
    """Return how many physical cores this process may keep busy; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core_of(cpu) for cpu in allowed}
    quota = _cpu_quota()
    return max(1, min(len(cores), int(quota) if quota else len(cores)))


def available_memory_bytes() -> int:
    """Return how many bytes this process may still take before the system or its container runs short."""
    available = _meminfo("MemAvailable") or (4 << 30)
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def total_memory_bytes() -> int:
    """Return how many bytes of memory this machine, or its container, has."""
    total = _meminfo("MemTotal") or (4 << 30)
    limit = _number(_CGROUP / "memory.max")
    return total if limit is None else min(total, limit)


def _core_of(cpu: int) -> tuple[str, str] | int:
    """Return what identifies the physical core of a logical one; the logical one itself where unknown."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return cpu


def _cpu_quota() -> float | None:
    """Return the cgroup's processor quota in cores, or None without one."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        return None


def _meminfo(key: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
