"""`mansard gpus`: the catalogue of hardware, all of it or what a word matches."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.specs.hardware import HardwareSpec


def gpus(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Keep what has every word in its name, maker, architecture or kind."),
    ] = None,
    hardware_file: Annotated[Path | None, typer.Option(help="TOML file with hardware of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the hardware that plans know: rates, memory, links, prices."""
    from mansard.specs.hardware_catalogue import catalogue, load_hardware_file

    known = [*catalogue().values(), *(load_hardware_file(hardware_file) if hardware_file else ())]
    found = [spec for spec in known if all(matches(spec, word) for word in words or ())]
    if not found:
        raise ValueError(f"no hardware matches {' '.join(words or ())!r} (`mansard gpus` lists all {len(known)})")
    if as_json:
        typer.echo(json.dumps([facts(spec) for spec in found], ensure_ascii=False, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(table(found))
    console.print(
        f"{len(found)} of {len(known)}. Rates are dense, per device; prices are indicative and dated (--json).",
        style="dim",
    )


def matches(spec: HardwareSpec, word: str) -> bool:
    """Say whether a word is part of a hardware's name, aliases, maker, architecture or kind."""
    text = " ".join((spec.name, *spec.aliases, spec.vendor, spec.architecture, spec.kind))
    return word.lower() in text.lower()


def facts(spec: HardwareSpec) -> dict[str, Any]:
    """Return an entry as JSON values, its ridge point included."""
    return {**asdict(spec), "family": spec.family, "ridge_flops_per_byte": spec.ridge()}


def table(specs: list[HardwareSpec]) -> Table:
    """Return the catalogue as a table."""
    from mansard.planning.terminal import plain_table
    from mansard.planning.words import dollars
    from mansard.specs.hardware import GIB

    made = plain_table("name", "GiB", "GB/s", "16-bit", "8-bit", "4-bit", "ridge", "link", "W", "$/h")
    for spec in specs:
        eight = max(spec.flops.get("fp8", 0.0), spec.flops.get("int8", 0.0))
        four = max(spec.flops.get("fp4", 0.0), spec.flops.get("int4", 0.0))
        made.add_row(
            spec.name,
            f"{spec.memory_bytes / GIB:.0f}",
            f"{spec.memory_bytes_per_s / 1e9:,.0f}",
            *(f"{rate / 1e12:,.0f}" if rate else "–" for rate in (spec.peak_flops(spec.matmul_dtype), eight, four)),
            f"{spec.ridge():.0f}",
            spec.link.kind,
            f"{spec.tdp_w:.0f}" if spec.tdp_w else "–",
            dollars(spec.price.usd_per_hour) if spec.price else "–",
        )
    made.caption = "16-, 8-, 4-bit: TFLOP/s or TOP/s; ridge: FLOP/byte at 16 bits"
    made.caption_justify = "left"
    return made
