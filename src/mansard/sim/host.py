"""The hardware a person names for a simulation: one of the catalogue, or `host`, this machine as it was measured."""

from __future__ import annotations

from mansard.cost.calibrate import host_hardware, host_profile, load_calibration
from mansard.cost.profiles import Profile
from mansard.specs.hardware import HardwareSpec
from mansard.specs.hardware_catalogue import parse_hardware


def find_deployment_hardware(text: str) -> tuple[HardwareSpec, int, Profile | None]:
    """Return hardware, count, and constants of its own where it has any.

    Raises: ValueError for unknown hardware, or a host that was never measured.
    """
    if text.strip().lower() not in ("host", "host:1"):
        return *parse_hardware(text), None
    calibration = load_calibration()
    if calibration is None:
        raise ValueError("this host was never measured; run `mansard roof` first")
    return host_hardware(calibration), 1, host_profile(calibration)
