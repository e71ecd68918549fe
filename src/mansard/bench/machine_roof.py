"""measure_roof: this machine's own roof, measured with the kernels that run models.

Ceilings are what the instructions of the chosen kernels reach (reads in four streams a thread, fused multiply-adds and
int8 dot products from registers); efficiencies are what whole matrix products reach of them. Each figure is the best of
several repeats: on a shared machine the best is what the hardware allows, the median what the neighbours left.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mansard.cost.calibrate import HostCalibration
from mansard.runtime.machine import num_usable_cores, total_memory_bytes

Progress = Callable[[str], None]

_READ_BYTES = 384 << 20  # well beyond the last-level cache
_MATRIX = 4096  # rows and columns of the matrix products
_ROWS_PREFILL = 128


@dataclass(frozen=True, slots=True)
class Product:
    """One measured matrix product: weights of `rows` × `columns` against a number of activation rows."""

    weight_bytes: int
    operations: float
    seconds: float


def measure_roof(num_threads: int | None = None, isa: str = "", progress: Progress | None = None) -> HostCalibration:
    """Measure reads, arithmetic and matrix products; takes about ten seconds.

    `isa` names the kernels to measure ("" for the best this processor runs); `progress` is told what is measured next.
    """
    from mansard import _native

    tell = progress or (lambda _: None)
    isa = isa or _native.isas()[-1]
    threads = num_threads or num_usable_cores()
    tell("reading memory")
    reads = {n: _native.read_rate(isa, n, _READ_BYTES, 8) for n in sorted({1, threads})}
    caches = cache_bytes()
    tell("arithmetic")
    flops = {
        "fp32": _native.operation_rate(isa, threads, "fma", 20),
        "int8": _native.operation_rate(isa, threads, "dot", 20),
    }
    # 16-bit weights are widened and multiplied as float32; 4-bit codes are multiplied as int8.
    flops |= {"fp16": flops["fp32"], "bf16": flops["fp32"], "int4": flops["int8"]}
    tell("matrix products")
    decode, prefill = product("Q4_0", 1, threads, isa), product("Q8_0", _ROWS_PREFILL, threads, isa)
    tell("step overhead")
    step, op = step_overhead_s(threads, isa)
    return HostCalibration(
        host=host_name(),
        num_threads=threads,
        read_bytes_per_s=reads,
        flops=flops,
        memory_bytes=total_memory_bytes(),
        paths={"fp32": f"{isa} fma", "int8": f"{isa} dot"},
        cache_bytes=caches,
        efficiency={
            "gemm_memory": min(1.0, decode.weight_bytes / decode.seconds / max(reads.values())),
            "gemm_compute": min(1.0, prefill.operations / prefill.seconds / flops["int8"]),
        },
        op_floor_s=op,
        step_overhead_s=step,
        measured_at=time.strftime("%Y-%m-%d %H:%M"),
    )


def product(kind: str, rows: int, threads: int, isa: str) -> Product:
    """Time four matrix products of random weights of one format, too large for the caches together."""
    from mansard import _native

    model = _native.Model(isa, threads, "int8", max(rows, 1), rows, -(-rows // 16))
    source, target = model.add_register(_MATRIX), model.add_register(_MATRIX)
    block_bytes = {"Q4_0": 18, "Q8_0": 34}[kind]
    num_bytes = _MATRIX * _MATRIX // 32 * block_bytes
    weights = [model.add_weight(kind, np.ones(num_bytes, np.uint8), _MATRIX, _MATRIX) for _ in range(4)]
    for weight in weights:
        model.linear(source, target, [weight], None, False)
    seconds = _best_step(model, _one_sequence(rows), 5)
    return Product(model.weight_bytes, 8.0 * rows * _MATRIX * _MATRIX, seconds)


def step_overhead_s(threads: int, isa: str) -> tuple[float, float]:
    """Return the seconds that a step costs beside its ops, and that one op costs however small."""
    from mansard import _native

    def empty(num_ops: int) -> float:
        model = _native.Model(isa, threads, "int8", 1, 1, 1)
        source, target = model.add_register(16), model.add_register(16)
        weight = model.add_weight("F32", np.zeros(16 * 16 * 4, np.uint8), 16, 16)
        for _ in range(num_ops):
            model.linear(source, target, [weight], None, False)
        return _best_step(model, _one_sequence(1), 200)

    few, many = empty(1), empty(201)
    op = max(0.0, (many - few) / 200)
    return max(0.0, few - op), op


def cache_bytes() -> dict[str, int]:
    """Return the sizes of the first processor's data caches by level, as the system reports them."""
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level = (index / "type").read_text().strip(), (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            sizes["L1d" if level == "1" else f"L{level}"] = int(size[:-1]) * 1024
    return sizes


def host_name() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _one_sequence(rows: int) -> tuple[Any, ...]:
    """Return the arrays of a step of one sequence of `rows` tokens that samples nothing."""
    ints = [np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32), np.array([rows], np.int32)]
    blocks = np.arange(-(-rows // 16), dtype=np.int32)
    return (*ints, np.array([len(blocks)], np.int32), blocks, np.zeros(0, np.int32), np.empty((0, 1), np.float32))


def _best_step(model: Any, arrays: tuple[Any, ...], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        model.step(*arrays)
        best = min(best, time.perf_counter() - start)
    return best
