"""Where and with what a result was made: a number without its machine and versions cannot be compared."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mansard import __version__
from mansard.runtime.machine import available_memory_bytes, num_usable_cores


def environment() -> dict[str, Any]:
    """Return this machine, these versions, this command and the time."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["mansard", *sys.argv[1:]]),
        "mansard": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor_name(),
        "num_cores": num_usable_cores(),
        "available_memory_bytes": available_memory_bytes(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def processor_name() -> str:
    """Return the processor's name as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
