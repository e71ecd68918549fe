"""HostCalibration: what this machine was measured to do, and the hardware and constants that follow from it.

The kernels measure (bandwidth by threads, arithmetic by path, caches, overheads); here is only the record, its file and
its conversion. A measured ceiling is not a data sheet's, so the profile of a calibrated host takes efficiencies near 1
from the record instead of a family's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from mansard.cost.profiles import Profile, engine_constants, family_constants, link_constants
from mansard.specs.hardware import HardwareSpec, LinkSpec

VERSION = 1
SHARED_MEMORY = LinkSpec("none", 0.0, 0.0, 1)


@dataclass(frozen=True, slots=True)
class HostCalibration:
    """Measured ceilings of one host. Units: bytes/s by number of threads, FLOP/s (or OP/s) by number format, seconds.

    `flops` is what the best kernel path of each format reaches with all threads (`paths` names it: amx_int8,
    avx512_vnni …), `efficiency` the share of the ceilings that whole matrix multiplications reach (`gemm_memory`,
    `gemm_compute`, `attention_memory`).
    """

    host: str
    num_threads: int
    read_bytes_per_s: Mapping[int, float] = field(hash=False)
    flops: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    paths: Mapping[str, str] = field(default_factory=dict, hash=False)
    cache_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)  # L1d, L2, L3
    efficiency: Mapping[str, float] = field(default_factory=dict, hash=False)
    op_floor_s: float = 1e-6
    step_overhead_s: float = 1e-4
    sequence_overhead_s: float = 1e-5
    measured_at: str = ""
    version: int = VERSION

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the read bandwidth with all threads (or the most that was measured)."""
        usable = [rate for threads, rate in self.read_bytes_per_s.items() if threads <= self.num_threads]
        return max(usable or self.read_bytes_per_s.values())


def calibration_path() -> Path:
    """Return where this user's calibration is kept: `$XDG_CACHE_HOME/mansard/host.json`, or under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "mansard" / "host.json"


def save_calibration(calibration: HostCalibration, path: Path | None = None) -> Path:
    """Write the record as JSON and return where."""
    path = path or calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")
    return path


def load_calibration(path: Path | None = None) -> HostCalibration | None:
    """Return the record, or None when this host was never calibrated (or by another version).

    Raises: ValueError when the file is no such record.
    """
    path = path or calibration_path()
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table.get("version") != VERSION:
            return None
        unknown = set(table) - {f.name for f in fields(HostCalibration)}
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        table["read_bytes_per_s"] = {int(k): float(v) for k, v in table["read_bytes_per_s"].items()}
        return HostCalibration(**table)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no host calibration ({error}); delete it and calibrate again") from error


def host_hardware(calibration: HostCalibration) -> HardwareSpec:
    """Return this host as hardware that the planner can price."""
    return HardwareSpec(
        name=f"this host ({calibration.host})",
        vendor="host",
        architecture="cpu",
        kind="cpu",
        flops=dict(calibration.flops),
        memory_bytes=calibration.memory_bytes,
        memory_bytes_per_s=calibration.memory_bytes_per_s,
        link=SHARED_MEMORY,
        inter_node_link=SHARED_MEMORY,
        visible_memory_bytes=calibration.memory_bytes,
        l2_bytes=calibration.cache_bytes.get("L3", calibration.cache_bytes.get("L2", 0)),
        num_units=calibration.num_threads,
        measured_flops=dict(calibration.flops),
        visible_memory_known=True,
        source=f"measured {calibration.measured_at}".strip(),
        confidence="measured",
    )


def host_profile(calibration: HostCalibration) -> Profile:
    """Return mansard's own profile on this host: measured floors, overheads and efficiencies."""
    share = {"gemm_memory": 0.9, "gemm_compute": 0.8, "attention_memory": 0.7, **calibration.efficiency}
    base = family_constants("cpu")
    family = replace(
        base,
        gemm_floor_s=calibration.op_floor_s,
        gemm_memory=dict.fromkeys(base.gemm_memory, share["gemm_memory"]),
        gemm_compute=dict.fromkeys({*base.gemm_compute, *calibration.flops}, share["gemm_compute"]),
        decode_attention_floor_s=calibration.op_floor_s,
        decode_attention_memory=dict.fromkeys(base.decode_attention_memory, share["attention_memory"]),
        elementwise_floor_s=calibration.op_floor_s,
        moe_floor_s=calibration.op_floor_s,
        moe_memory=dict.fromkeys(base.moe_memory, share["gemm_memory"]),
        linear_attention_floor_s=calibration.op_floor_s,
        calibrated=True,
        source=f"measured on {calibration.host}",
    )
    engine = replace(
        engine_constants("mansard"),
        step_overhead_s=calibration.step_overhead_s,
        sequence_overhead_s=calibration.sequence_overhead_s,
        calibrated=True,
        source=f"measured on {calibration.host}",
    )
    return Profile("mansard on this host", family, engine, link_constants(), calibrated=True)
