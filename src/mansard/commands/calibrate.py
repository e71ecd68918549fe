"""`mansard calibrate`: fit a profile's few factors to a recorded run, and say how well they fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mansard.sim.deployment import Deployment
from mansard.sim.fitting import FACTORS, Calibration


def calibrate(
    run: Annotated[Path, typer.Argument(metavar="RUN.JSONL", help="A run recorded with --record.")],
    model: Annotated[str | None, typer.Option(help="The model that ran.", show_default="what the file names")] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="The hardware it ran on; host is this machine.")] = "host",
    weights: Annotated[str | None, typer.Option(help="Weight format.", show_default="what the file names")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV-cache format.", show_default="what the file names")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size.", show_default="all devices")] = None,
    engine: Annotated[str, typer.Option(help="Whose constants to begin with.")] = "mansard",
    out: Annotated[Path | None, typer.Option(help="Write the profile, for simulate --profile.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit overheads and kernel efficiencies to a recorded run, and print the residuals."""
    import numpy as np

    from mansard.sim import fitting
    from mansard.sim.replay import read_run

    recorded = read_run(run)
    deployment = recorded_deployment(
        model or recorded.head.get("model", ""), gpu, weights or recorded.head.get("weights") or "bf16",
        kv_dtype or recorded.head.get("kv") or "bf16", tp, engine,
    )  # fmt: skip
    steps, priced = recorded.steps, deployment.priced
    before = float(np.median(np.abs(fitting.step_errors(priced, steps))))
    found = fitting.fit(priced, steps, deployment.hardware.name, deployment.spec.name or deployment.spec.model_type)
    if out is not None:
        fitting.save(found, out)
    if as_json:
        print(json.dumps({**asdict(found), "median_error_before": before}))
        return
    _show(found, deployment, before)


def recorded_deployment(model: str, gpu: str, weights: str, kv: str, tp: int | None, engine: str) -> Deployment:
    """Return the deployment that a run was recorded on.

    Raises: ValueError when the model is not named anywhere, or the host was never measured.
    """
    from mansard.cost.formats import PrecisionPlan
    from mansard.cost.op_cost import Layout
    from mansard.loading.model_source import load_model_spec
    from mansard.sim.host import find_deployment_hardware

    if not model:
        raise ValueError("the file does not say which model ran; name it with --model")
    spec = load_model_spec(model)
    hardware, count, profile = find_deployment_hardware(gpu)
    return Deployment(
        spec, hardware, Layout(tp or count), PrecisionPlan.published(spec, weights, kv), engine, profile=profile
    )


def _show(found: Calibration, deployment: Deployment, before: float) -> None:
    from rich.console import Console
    from rich.table import Table

    prior = deployment.priced.profile.engine
    table = Table("factor", "before", "fitted", box=None, header_style="bold")
    for factor in FACTORS:
        table.add_row(factor.name, f"{getattr(prior, factor.name):.3g}", f"{found.factors[factor.name]:.3g}")
    console = Console()
    console.print(f"[bold]{found.model} on {found.hardware}[/bold], {found.num_steps:,} steps\n", highlight=False)
    console.print(table)
    console.print(
        f"\nstep-time error: median {found.median_error:.1%} (before {before:.1%}), p90 {found.p90_error:.1%}; "
        f"on steps that a fit did not see, median {found.half_error:.1%}",
        highlight=False,
    )
