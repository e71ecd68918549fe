"""The catalogue of hardware: TOML entries in, `HardwareSpec` out, found by name or alias.

The entries in `presets/hardware/` are read when first asked for. A file of one's own in the same format adds
or replaces entries:

    [My-Card-48GB]
    vendor = "NVIDIA"
    architecture = "Ada"
    memory_gib = 48
    memory_gb_per_s = 864
    tflops = { bf16 = 181, fp8 = 362 }
    link = { kind = "pcie4", gb_per_s = 31.5, max_devices = 8 }
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mansard.specs.hardware import GIB, VISIBLE_FRACTION, HardwareSpec, LinkSpec, PriceSpec
from mansard.specs.names import normalize_name, resolve_name

REMEDY = "`mansard gpus` lists all; --hardware-file FILE.toml adds your own"

# Floor of a small all-reduce over a whole group, seconds. Measured with CUDA graphs: NVLink A100 7 µs, H100
# 5.6 µs, B200 8 µs (16 KB, 8 ranks); PCIe 25 µs (L40S, small tensors). The others are assumed to lie between.
LINK_LATENCY_S = {
    "nvlink2": 8e-6,
    "nvlink3": 7e-6,
    "nvlink4": 5.6e-6,
    "nvlink5": 8e-6,
    "nvlink6": 8e-6,
    "nvlink3-bridge": 7e-6,
    "nvlink4-bridge": 5.6e-6,
    "xgmi": 12e-6,
    "ualink": 10e-6,
    "ub": 10e-6,
    "ici": 5e-6,
    "neuronlink": 15e-6,
    "roce": 20e-6,
    "connectx": 20e-6,
    "pcie3": 30e-6,
    "pcie4": 25e-6,
    "pcie5": 25e-6,
    "pcie6": 25e-6,
    "pcie5-x8": 25e-6,
    "upi": 2e-6,
    "xgmi-socket": 2e-6,
    "none": 0.0,
}
INTER_NODE_LATENCY_S = 20e-6  # RDMA over InfiniBand or RoCE, a small all-reduce (assumed)
MAX_NODES_DEVICES = 4096

_REQUIRED = ("vendor", "architecture", "memory_gib", "memory_gb_per_s", "tflops")
_OPTIONAL = (
    *(
        "year",
        "kind",
        "visible_gib",
        "visible_source",
        "memory_type",
        "l2_mb",
        "num_units",
        "measured_tflops",
    ),
    *("link", "inter_node_gb_per_s", "tdp_w", "price", "aliases", "confidence", "source", "notes"),
)
_KEYS = frozenset(_REQUIRED + _OPTIONAL)


def parse_entry(name: str, entry: Mapping[str, Any]) -> HardwareSpec:
    """Build the `HardwareSpec` of one TOML entry.

    Raises: ValueError for unknown or missing keys.
    """
    _check_keys(name, entry)
    link = entry.get("link", {"kind": "none", "gb_per_s": 0.0, "max_devices": 1})
    nominal = int(entry["memory_gib"] * GIB)
    price = entry.get("price")
    return HardwareSpec(
        name=name,
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        kind=entry.get("kind", "gpu"),
        flops={dtype: value * 1e12 for dtype, value in entry["tflops"].items()},
        memory_bytes=nominal,
        memory_bytes_per_s=entry["memory_gb_per_s"] * 1e9,
        link=_link(link["kind"], link["gb_per_s"] * 1e9, link.get("max_devices", 8)),
        inter_node_link=LinkSpec(
            "inter-node",
            entry.get("inter_node_gb_per_s", 12.5) * 1e9,
            INTER_NODE_LATENCY_S,
            MAX_NODES_DEVICES,
        ),
        visible_memory_bytes=_visible_bytes(entry, nominal),
        year=entry.get("year", 0),
        memory_type=entry.get("memory_type", ""),
        l2_bytes=int(entry.get("l2_mb", 0) * 1e6),
        num_units=entry.get("num_units", 0),
        tdp_w=float(entry["tdp_w"]) if "tdp_w" in entry else None,
        price=PriceSpec(**price) if price else None,
        measured_flops={dtype: value * 1e12 for dtype, value in entry.get("measured_tflops", {}).items()},
        visible_memory_known="visible_gib" in entry,
        aliases=tuple(entry.get("aliases", ())),
        source=entry.get("source", "given"),
        confidence=entry.get("confidence", ""),
        notes=entry.get("notes", ""),
    )


def _check_keys(name: str, entry: Mapping[str, Any]) -> None:
    unknown = sorted(set(entry) - _KEYS)
    missing = [key for key in _REQUIRED if key not in entry]
    if unknown or missing:
        problem = f"unknown keys {unknown}" if unknown else f"no {', '.join(missing)}"
        raise ValueError(f"hardware entry {name!r} has {problem}; the keys are {', '.join(sorted(_KEYS))}")


def _link(kind: str, bytes_per_s: float, max_devices: int) -> LinkSpec:
    return LinkSpec(kind, bytes_per_s, LINK_LATENCY_S.get(kind, 25e-6), max_devices)


def _visible_bytes(entry: Mapping[str, Any], nominal: int) -> int:
    if "visible_gib" in entry:
        return int(entry["visible_gib"] * GIB)
    kind = str(entry.get("memory_type", ""))
    key = next((k for k in ("HBM", "GDDR") if kind.startswith(k)), "other")
    return int(nominal * VISIBLE_FRACTION[key])


def load_hardware_file(path: Path) -> tuple[HardwareSpec, ...]:
    """Read the entries of a TOML file.

    Raises: ValueError when the file is missing, is no TOML or has a wrong entry.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"cannot read hardware file {path}: {error}") from error
    return tuple(parse_entry(name, entry) for name, entry in table.items())


@functools.cache
def catalogue() -> Mapping[str, HardwareSpec]:
    """Return every entry of the package's catalogue by name, in the order of its files."""
    entries: dict[str, HardwareSpec] = {}
    folder = resources.files("mansard.specs") / "presets" / "hardware"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            entries.update({name: parse_entry(name, entry) for name, entry in table.items()})
    return entries


@functools.cache
def _index() -> Mapping[str, str]:
    return _index_of(catalogue())


def _index_of(entries: Mapping[str, HardwareSpec]) -> dict[str, str]:
    """Map normalized names and aliases to names; an alias wins over a name without its memory size."""
    index = {re.sub(r"-\d+gb$", "", normalize_name(name)): name for name in reversed(list(entries))}
    index |= {normalize_name(alias): name for name, spec in entries.items() for alias in spec.aliases}
    return index | {normalize_name(name): name for name in entries}


def find_hardware(name: str, hardware_file: Path | None = None) -> HardwareSpec:
    """Return the hardware that `name` means: a catalogue name or alias, or an entry of `hardware_file`.

    Raises: ValueError with the nearest names when nothing is called so.
    """
    if hardware_file is None:
        return catalogue()[resolve_name(name, _index(), "hardware", REMEDY)]
    entries = {**catalogue(), **{spec.name: spec for spec in load_hardware_file(hardware_file)}}
    return entries[resolve_name(name, _index_of(entries), "hardware", REMEDY)]


def parse_hardware(text: str, hardware_file: Path | None = None) -> tuple[HardwareSpec, int]:
    """Read `name` or `name:count` (`h100-sxm:8` is eight of them) and return the hardware and the count.

    Raises: ValueError for an unknown name or a count that is not a positive whole number.
    """
    name, colon, count = text.partition(":")
    if not colon:
        return find_hardware(name, hardware_file), 1
    if not count.strip().isdigit() or int(count) < 1:
        raise ValueError(f"count {count!r} in {text!r} is not a whole number of at least 1 (write for example h100:8)")
    return find_hardware(name, hardware_file), int(count)
