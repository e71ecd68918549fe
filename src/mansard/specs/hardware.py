"""HardwareSpec: what one accelerator or CPU socket can do, as data.

Rates are dense (never with sparsity) and per device; bandwidth of a link is one direction of one device. The
facts live in `presets/hardware/*.toml`, each with its source; `mansard.specs.hardware_catalogue` finds them
by name. Rates are in SI units (1 TFLOP/s = 1e12), memory is in bytes (1 GiB = 2**30).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

HardwareKind = Literal["gpu", "cpu", "tpu", "npu"]
GIB = 2**30

# What a framework sees of the nominal size where no log says: the median of the catalogue's known GPUs (H100
# 0.990, H200 0.991, A100-40 0.985, RTX 5090 0.979, RTX 3090 0.983, RTX 4090 0.980; ECC on GDDR takes more:
# L40S 0.925).
VISIBLE_FRACTION = {"HBM": 0.989, "GDDR": 0.98, "other": 1.0}


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """How devices reach each other.

    Units: `bytes_per_s` one direction of one device; `latency_s` the floor of a small all-reduce over the
    link. `max_devices` is how many devices the link joins (a bridge: 2; an NVLink switch: 8 or 72).
    """

    kind: str
    bytes_per_s: float
    latency_s: float
    max_devices: int = 1


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """What an hour of one device costs in US dollars, when that was so and what sort of price it is."""

    usd_per_hour: float
    date: str
    kind: str = "indicative"
    note: str = ""


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """One device of the catalogue.

    Units: `flops` dense FLOP/s (or OP/s for integers) by number format: fp32 tf32 fp16 bf16 fp8 int8 fp6 fp4
    int4, and fp16_acc16 fp8_acc16 where accumulating in 16 bit is faster. `measured_flops`: the best matrix
    multiplication seen.
    """

    name: str
    vendor: str
    architecture: str
    kind: HardwareKind
    flops: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    memory_bytes_per_s: float
    link: LinkSpec
    inter_node_link: LinkSpec
    visible_memory_bytes: int
    year: int = 0
    memory_type: str = ""
    l2_bytes: int = 0
    num_units: int = 0  # SMs, compute units, cores
    tdp_w: float | None = None
    price: PriceSpec | None = None
    measured_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    visible_memory_known: bool = False  # False: visible_memory_bytes is nominal times VISIBLE_FRACTION
    aliases: tuple[str, ...] = ()
    source: str = ""
    confidence: str = ""
    notes: str = ""

    @property
    def family(self) -> str:
        """Return the architecture family in lower case: volta … rubin, cdna2 …, xe2, apple, cpu, tpu …"""
        if self.kind == "cpu":
            return "cpu"
        if self.vendor in ("Apple", "Google"):
            return "apple" if self.vendor == "Apple" else "tpu"
        return self.architecture.lower().replace("neuroncore", "neuron").split(" ")[0].split("-v")[0]

    @property
    def matmul_dtype(self) -> str:
        """Return the 16-bit format that its matrix units multiply, bf16 before fp16, or fp32 without any."""
        return next((d for d in ("bf16", "fp16", "fp32") if d in self.flops), next(iter(self.flops), "fp32"))

    def peak_flops(self, dtype: str) -> float:
        """Return the dense peak for `dtype`, or of the 16-bit matrix format where it has no own rate.

        Units: FLOP/s.
        """
        return self.flops.get(dtype, self.flops.get(self.matmul_dtype, 0.0))

    def ridge(self, dtype: str | None = None) -> float:
        """Return the arithmetic intensity at which compute and memory take equally long.

        Units: FLOP per byte. Source: Williams et al., Roofline (CACM 2009).
        """
        return self.peak_flops(dtype or self.matmul_dtype) / self.memory_bytes_per_s

    def link_between(self, num_devices: int) -> LinkSpec:
        """Return the slowest link that a group of `num_devices` must cross."""
        if num_devices <= self.link.max_devices:
            return self.link
        pcie = LinkSpec("pcie4", 31.5e9, 25e-6, 8)  # bridged pairs talk over PCIe beyond their bridge
        return pcie if "bridge" in self.link.kind and num_devices <= pcie.max_devices else self.inter_node_link

    def with_price(self, usd_per_hour: float, date: str = "given") -> HardwareSpec:
        """Return the same hardware at another price per device and hour."""
        return replace(self, price=PriceSpec(usd_per_hour, date, "given"))

    def with_memory(self, memory_bytes: int) -> HardwareSpec:
        """Return the same hardware with `memory_bytes`, all of it visible (a CPU socket, a board variant)."""
        return replace(self, memory_bytes=memory_bytes, visible_memory_bytes=memory_bytes, visible_memory_known=True)
