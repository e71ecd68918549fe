"""Appending a bench result to a calibration: what was predicted, measured and off, and the steps to fit.

The file is the JSON lines of a recorded run: a `run` line that names the model, then for each decode and prompt step of
the engine in this process a `step` line, so that `mansard calibrate FILE` can fit it; and for each metric of any result
a `compared` line, which the fit passes over. A server's result has no steps: record it with `mansard serve --record`.

    {"event": "compared", "at": …, "kind": …, "target": {…}, "workload": …, "metric": …, "predicted": …, "measured": …,
     "error": …, "interval": [low, high] | null}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mansard.bench.compared import Compared
from mansard.bench.engine_run import EngineRun
from mansard.bench.result import BenchResult
from mansard.sim.recording import VERSION
from mansard.specs.precision import number_format

FORMATS = ("fp32", "bf16", "q8_0", "q6_k", "q5_k", "q4_k")
NAMES = ("model", "weights", "kv")


def nearest_format(bits: float) -> str:
    """Return the number format whose stored bits are nearest: a file of mixed formats has none of its own."""
    return min(FORMATS, key=lambda name: abs(number_format(name).bits_per_weight - bits))


def comparison_lines(result: BenchResult, rows: Iterable[Compared], about: str = "") -> list[dict[str, Any]]:
    """Return the lines of a result's metrics; `about` names the workload where a result has several."""
    target = {key: result.target[key] for key in ("model", "url", "kv_dtype", "threads") if key in result.target}
    shared = {
        "event": "compared",
        "at": result.environment.get("created"),
        "kind": result.kind,
        "target": target,
        "workload": about or result.workload.get("name"),
    }
    return [{**shared, **row.to_dict()} for row in rows]


def step_lines(runs: Iterable[EngineRun], prefix: str) -> list[dict[str, Any]]:
    """Return the lines of every step; `prefix` keeps the sequences of other runs apart."""
    lines = []
    for number, run in enumerate(runs):
        for step in run.steps:
            seqs = [[f"{prefix}{number}-{name}", *counts] for name, *counts in step.sequences]
            lines.append(
                {"event": "step", "t": step.start_s, "elapsed_s": step.compute_s + step.sample_s, "seqs": seqs}
            )
    return lines


def append_calibration(path: Path, head: Mapping[str, str], lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines to a calibration, beginning it with the names in `head` where there is none.

    Raises: ValueError when the file is something else, or of another model or other formats.
    """
    known = {name: head.get(name, "") for name in NAMES}
    if not path.exists() or not path.stat().st_size:
        lines = [{"event": "run", "version": VERSION, **known}, *lines]
    else:
        _check(path, known)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _check(path: Path, known: Mapping[str, str]) -> None:
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    try:
        table = json.loads(first)
        is_run = table["event"] == "run" and table["version"] == VERSION
    except (ValueError, KeyError, TypeError):
        is_run = False
    if not is_run:
        raise ValueError(f"{path} is no calibration of version {VERSION} (name a new file)")
    other = {name: table.get(name, "") for name in NAMES}
    if other != known:
        raise ValueError(f"{path} is of {other}, this result of {known} (append to another file)")
