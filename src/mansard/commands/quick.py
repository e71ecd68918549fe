"""The quick way into `mansard plan`: its usual arguments read without building the whole command line.

Building the command line takes longer than planning does. Plain arguments are read here; help, and anything that is not
plain (an unknown option, a value that does not convert), is left to the full command line, which says what is wrong.
A test holds that this table and the command's signature agree.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Option → (parameter, type, least value).
OPTIONS: dict[str, tuple[str, type[str] | type[int] | type[float] | type[Path], int | None]] = {
    "--gpu": ("gpu", str, None),
    "--engine": ("engine", str, None),
    "--weights": ("weights", str, None),
    "--kv": ("kv", str, None),
    "--hardware-file": ("hardware_file", Path, None),
    "--max-devices": ("max_devices", int, 1),
    "--tp": ("tp", int, 1),
    "--pp": ("pp", int, 1),
    "--dp": ("dp", int, 1),
    "--ep": ("ep", int, 1),
    "--workload": ("workload", str, None),
    "--rate": ("rate", float, None),
    "--concurrency": ("concurrency", int, None),
    "--slo": ("slo", str, None),
    "--objective": ("objective", str, None),
    "--price": ("price", float, None),
    "--max-model-len": ("max_model_len", int, None),
    "--memory-fraction": ("memory_fraction", float, None),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int, 16),
    "--speculation": ("speculation", str, None),
}
FLAGS = {"--detail": "detail", "--json": "as_json", "--csv": "as_csv"}
MOST_DEVICES = 64


def planner(arguments: Sequence[str]) -> Callable[[], bool] | None:
    """Return what runs `mansard plan` with these arguments and says whether something fits, or None when not plain."""
    if not arguments or arguments[0] != "plan":
        return None
    values = read(arguments[1:])
    if values is None:
        return None
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # no linear algebra here; threads take longer to start than to plan

    def run() -> bool:
        gc.disable()  # too little garbage is made to be worth collecting
        try:
            from mansard.planning.run import run_plan

            return run_plan(**values)
        finally:
            gc.enable()

    return run


def read(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the command's parameters, or None when an argument is not plain."""
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in FLAGS:
            values[FLAGS[word]] = True
        elif name in OPTIONS:
            if not equals and not rest:
                return None
            parameter, kind, least = OPTIONS[name]
            converted = _convert(value if equals else rest.pop(0), kind, least)
            if converted is None:
                return None
            values[parameter] = converted
        elif word.startswith("-") or "model" in values:
            return None
        else:
            values["model"] = word
    return values if "model" in values and values.get("max_devices", 1) <= MOST_DEVICES else None


def _convert(text: str, kind: Callable[[str], Any], least: int | None) -> Any:
    if text.startswith("-"):
        return None
    try:
        value = kind(text)
    except ValueError:
        return None
    return None if least is not None and value < least else value
