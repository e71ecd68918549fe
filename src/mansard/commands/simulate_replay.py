"""`mansard simulate --replay`: a recorded run again, plan by plan, and what the cost model makes of its steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from mansard.commands.calibrate import recorded_deployment
from mansard.sim import fitting
from mansard.sim.deployment import Deployment
from mansard.sim.replay import RecordedRun, read_run
from mansard.sim.replay import replay as replay_run


def calibrated(deployment: Deployment, path: Path) -> Deployment:
    """Return the deployment with the factors of a calibration file.

    Raises: ValueError when the file is none.
    """
    return replace(deployment, profile=fitting.load(path).apply(deployment.priced.profile), _known={})


def show_replay(
    console: Console,
    path: Path,
    model: str,
    gpu: str,
    formats: tuple[str, str],
    tp: int | None,
    engine: str,
    profile: Path | None,
    as_json: bool,
) -> None:
    """Print the parity of the plans and, when the model and hardware are known, the error of the step times.

    Raises: ValueError when the file cannot be replayed.
    """
    run = read_run(path)
    parity = replay_run(run)
    found: dict[str, object] = {
        "num_plans": parity.num_plans, "num_same": parity.num_same, "num_preemptions": parity.num_preemptions,
        "num_prefix_hit_tokens": parity.num_hit_tokens,
    }  # fmt: skip
    lines = [
        f"{parity.num_same:,} of {parity.num_plans:,} plans are the same ({parity.share:.2%}); "
        f"{parity.num_preemptions:,} preemptions, {parity.num_hit_tokens:,} prompt tokens from the prefix cache"
    ]
    for step, recorded, replayed in parity.differences[:3]:
        lines.append(f"  step {step}: recorded {recorded}, replayed {replayed}")
    errors = _errors(run, model, gpu, formats, tp, engine, profile)
    if errors is not None:
        size = np.abs(errors)
        found |= {"step_error_median": float(np.median(size)), "step_error_p90": float(np.percentile(size, 90))}
        lines.append(f"step-time error: median {np.median(size):.1%}, p90 {np.percentile(size, 90):.1%}")
    if as_json:
        print(json.dumps(found))
        return
    for line in lines:
        console.print(line, highlight=False)


def _errors(
    run: RecordedRun, model: str, gpu: str, formats: tuple[str, str], tp: int | None, engine: str, profile: Path | None
) -> fitting.Floats | None:
    """Return the errors of the predicted step times, or None when nobody says which model ran."""
    name = model or run.head.get("model", "")
    if not name:
        return None
    weights, kv = run.head.get("weights") or formats[0], run.head.get("kv") or formats[1]
    deployment = recorded_deployment(name, gpu, weights, kv, tp, engine)
    if profile is not None:
        deployment = calibrated(deployment, profile)
    return fitting.step_errors(deployment.priced, run.steps)
