"""`mansard roof`: measure this machine's ceilings and keep them for the planner and the benchmarks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.commands import options

if TYPE_CHECKING:
    from mansard.cost.calibrate import HostCalibration


def roof(
    threads: options.Threads = None,
    isa: Annotated[str, typer.Option(help="Kernels to measure: portable, avx2, avx512.", show_default="the best")] = "",
    save: Annotated[bool, typer.Option(help="Keep the result for `plan` and `bench`.")] = True,
    as_json: options.AsJson = False,
) -> None:
    """Measure this machine's read bandwidth and arithmetic, and what matrix products reach of them."""
    from mansard.bench.machine_roof import measure_roof
    from mansard.cost.calibrate import save_calibration

    found = measure_roof(threads, isa, lambda what: typer.echo(f"measuring: {what} …", err=True))
    where = save_calibration(found) if save else None
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    _show(found)
    if where is not None:
        typer.echo(f"saved to {where}", err=True)


def _show(found: HostCalibration) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "ceiling", "measured", "from", title=f"{found.host}, {found.num_threads} threads", title_justify="left"
    )
    for threads, rate in found.read_bytes_per_s.items():
        table.add_row(
            f"read, {threads} thread{'s' if threads > 1 else ''}", f"{rate / 1e9:.1f} GB/s", "four streams each"
        )
    for kind in ("fp32", "int8"):
        unit = "TFLOP/s" if kind == "fp32" else "TOP/s"
        table.add_row(kind, f"{found.flops[kind] / 1e12:.2f} {unit}", found.paths[kind])
    for kind in ("fp32", "int8"):
        ridge = found.flops[kind] / found.memory_bytes_per_s
        table.add_row(f"ridge, {kind}", f"{ridge:.0f} operations a byte", "arithmetic ÷ read")
    table.add_row("4-bit product, 1 row", f"{found.efficiency['gemm_memory']:.0%} of the read ceiling", "4 × 4096²")
    table.add_row("8-bit product, 128 rows", f"{found.efficiency['gemm_compute']:.0%} of the int8 ceiling", "4 × 4096²")
    table.add_row("an op at least", f"{found.op_floor_s * 1e6:.2f} µs", "barrier and dispatch")
    table.add_row("caches", ", ".join(f"{k} {v >> 10:,} KiB" for k, v in found.cache_bytes.items()), "the system")
    Console().print(table)
