"""The roof that measured numbers stand beside: this machine's read bandwidth and arithmetic.

A calibration of this machine (`mansard roof`) is taken where there is one. Without, the kernels' own instructions are
probed for a second; where the native extension is missing too, plain NumPy is. Every share says which roof it is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mansard.cost.calibrate import HostCalibration, load_calibration
from mansard.runtime.machine import num_usable_cores

PROBE_BYTES = 256 << 20  # beyond every cache
PROBE_RUNS = 5
MATRIX = 768
FALLBACKS = {"int8": ("int8", "bf16", "fp16", "fp32"), "int16": ("int16", "int8", "fp32"), "fp32": ("fp32",)}


@dataclass(frozen=True, slots=True)
class Roof:
    """What the machine can do at most. Units: bytes/s; FLOP/s (or OP/s) by number format.

    `source` is printed wherever a share of the roof is; `is_calibrated` says whether it was measured with kernels.
    """

    read_bytes_per_s: float
    flops: Mapping[str, float]
    source: str
    is_calibrated: bool
    calibration: HostCalibration | None = None  # what it comes from

    def peak(self, number_format: str) -> tuple[str, float]:
        """Return the format whose rate bounds arithmetic in `number_format`, and the rate."""
        for name in FALLBACKS.get(number_format, (number_format, "fp32")):
            if name in self.flops:
                return name, self.flops[name]
        name = max(self.flops, key=lambda key: self.flops[key])
        return name, self.flops[name]


def host_roof(num_threads: int | None = None) -> Roof:
    """Return this machine's roof for `num_threads`: calibrated, or probed on the spot in about a second."""
    threads = num_threads or num_usable_cores()
    calibration = load_calibration()
    if calibration is not None:
        usable = {n: rate for n, rate in calibration.read_bytes_per_s.items() if n <= threads}
        bandwidth = max((usable or calibration.read_bytes_per_s).values())
        source = f"calibration of {calibration.measured_at or 'this host'}"
        return Roof(bandwidth, dict(calibration.flops), source, True, calibration)
    return _native_roof(threads) or Roof(
        probe_bandwidth(threads),
        {"fp32": probe_flops()},
        "NumPy probe; the true roof is higher (measure it once with `mansard roof`)",
        False,
    )


def _native_roof(num_threads: int) -> Roof | None:
    """Return what the best kernels' reads and multiplications reach, in few repeats; None without the extension."""
    try:
        from mansard import _native
    except ImportError:
        return None
    isa = _native.isas()[-1]
    rates = {"fp32": _native.operation_rate(isa, num_threads, "fma", PROBE_RUNS)}
    rates["int8"] = _native.operation_rate(isa, num_threads, "dot", PROBE_RUNS)
    reads = _native.read_rate(isa, num_threads, PROBE_BYTES, PROBE_RUNS)
    return Roof(reads, rates, f"a quick probe of the {isa} kernels (`mansard roof` measures it well)", False)


def probe_bandwidth(num_threads: int, num_bytes: int = PROBE_BYTES) -> float:
    """Return the best read bandwidth that NumPy sums reach with `num_threads`. Units: bytes/s."""
    array = np.ones(num_bytes // 8)
    parts = np.array_split(array, num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        return array.nbytes / _fastest(lambda: list(pool.map(np.sum, parts)))


def probe_flops(size: int = MATRIX) -> float:
    """Return what NumPy's matrix product reaches in float32. Units: FLOP/s."""
    a = np.ones((size, size), np.float32)
    return 2.0 * size**3 / _fastest(lambda: a @ a)


def _fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(PROBE_RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
