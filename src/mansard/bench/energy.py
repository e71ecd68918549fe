"""EnergyMeter: the joules that a run drew, where this machine's counters can be read; else no number at all.

RAPL counts what processor packages and memory draw, NVML what GPUs draw; both count everything that runs on them, idle
power included. RAPL counters wrap around (an hour or less on a busy package), so a long run reads them in between.

Source: Linux, Documentation/power/powercap; Intel SDM volume 3, 15.10; NVML, nvmlDeviceGetTotalEnergyConsumption.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

POWERCAP = Path("/sys/class/powercap")
READ_EVERY_S = 30.0
NOT_READABLE = "not readable"
CLOSED = "no counter is open to this user (RAPL, or NVML by pynvml)"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A rising counter. Units: joules. It begins anew at `wraps_at`; None: never."""

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None

    def since(self, before: float, now: float) -> float:
        """Return what was drawn between two readings, at most one wrap-around apart."""
        return now - before + (self.wraps_at or 0.0 if now < before else 0.0)


@dataclass(frozen=True, slots=True)
class Energy:
    """What a run drew, and whose counters say so; without a number `source` tells why. Units: joules."""

    joules: float | None
    source: str

    def per_token(self, num_tokens: int) -> float | None:
        """Return joules for each token."""
        return None if self.joules is None or num_tokens < 1 else self.joules / num_tokens

    def to_dict(self, num_tokens: int) -> dict[str, Any]:
        """Return the energy as JSON values."""
        return {
            "joules": self.joules,
            "joules_per_output_token": self.per_token(num_tokens),
            "source": self.source,
        }

    def text(self, num_tokens: int) -> str:
        """Return what a terminal shows."""
        each = self.per_token(num_tokens)
        if self.joules is None or each is None:
            return self.source
        return f"{each:,.3g} J/token, {self.joules:,.1f} J in all ({self.source})"


def host_counters(root: Path = POWERCAP) -> list[EnergyCounter]:
    """Return RAPL's counters of packages and of memory beside them; none where they cannot be read."""
    found = []
    for zone in sorted(root.glob("intel-rapl*:*")):
        try:
            name = (zone / "name").read_text(encoding="utf-8").strip()
            wraps_at = _joules(zone / "max_energy_range_uj")
            _joules(zone / "energy_uj")
        except (OSError, ValueError):
            continue
        if name.startswith("package") or name == "dram":  # cores are in their package, and psys holds them all
            found.append(EnergyCounter(f"RAPL {name}", _reader(zone / "energy_uj"), wraps_at))
    return found


def gpu_counters() -> list[EnergyCounter]:
    """Return NVML's counters of all GPUs; none without the pynvml package or a driver that counts."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    found = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            found.append(EnergyCounter(f"NVML gpu {index}", _gpu_reader(nvml, handle)))
    except nvml.NVMLError:
        return found
    return found


def meter_for(host: str) -> EnergyMeter:
    """Return a meter of the machine that a server runs on, which only counts where that is this one."""
    if host not in LOOPBACK:
        return EnergyMeter([], why_not="the server is on another machine")
    return EnergyMeter([*host_counters(), *gpu_counters()])


class EnergyMeter:
    """Adds up what counters rise by while it is entered; it may be entered many times."""

    def __init__(
        self, counters: Sequence[EnergyCounter], read_every_s: float = READ_EVERY_S, why_not: str = CLOSED
    ) -> None:
        self._counters = tuple(counters)
        self._read_every_s = read_every_s
        self._last: list[float] = []
        self._joules = 0.0
        self._failure = "" if counters else f"{NOT_READABLE}: {why_not}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EnergyMeter:
        self._last = []
        self.read()
        if self._counters and not self._failure:
            self._stop.clear()
            self._thread = threading.Thread(target=self._read_often, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        self.read()

    def read(self) -> None:
        """Add what was drawn since the last reading; a counter that fails spoils the whole."""
        try:
            now = [c.read() for c in self._counters]
        except (OSError, ValueError, RuntimeError) as error:
            self._failure = f"{NOT_READABLE}: a counter failed ({error})"
            return
        if self._last:
            self._joules += sum(c.since(a, b) for c, a, b in zip(self._counters, self._last, now, strict=True))
        self._last = now

    @property
    def energy(self) -> Energy:
        """Return what was drawn so far."""
        if self._failure:
            return Energy(None, self._failure)
        return Energy(self._joules, ", ".join(dict.fromkeys(c.name for c in self._counters)))

    def _read_often(self) -> None:
        while not self._stop.wait(self._read_every_s):
            self.read()


def _joules(path: Path) -> float:
    return int(path.read_text(encoding="ascii")) / 1e6


def _reader(path: Path) -> Callable[[], float]:
    return lambda: _joules(path)


def _gpu_reader(nvml: Any, handle: Any) -> Callable[[], float]:
    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except nvml.NVMLError as error:
            raise RuntimeError(f"NVML: {error}") from error

    return read
