"""`mansard explain`: the roofline of every op of a step."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.commands.plan import Engine, Kv, Model, Weights

if TYPE_CHECKING:
    from mansard.cost.deployment import Deployment
    from mansard.cost.phases import Phase
    from mansard.cost.question import Question

STEP = "The step"


def explain(
    model: Model,
    gpu: Annotated[str, typer.Option(help="Hardware: h100, mi300x, l4 …")],
    engine: Engine = "auto",
    weights: Weights = "auto",
    kv: Kv = "auto",
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.", min=1)] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.", min=1)] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel attention ranks.", min=1)] = None,
    ep: Annotated[int | None, typer.Option(help="Expert-parallel ranks.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Sequences that decode at once.", rich_help_panel=STEP, min=1)] = 1,
    context: Annotated[int, typer.Option(help="Tokens before each of them.", rich_help_panel=STEP, min=1)] = 1024,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt chunk.", rich_help_panel=STEP, min=1)] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each op of a prefill and a decode step: FLOPs, bytes, intensity, bound, time and share."""
    from mansard.cost.deployment import Pricer
    from mansard.cost.options import static_limit
    from mansard.cost.phases import phase
    from mansard.cost.shape import StepShape
    from mansard.planning.ask import ask
    from mansard.planning.run import fixed_layout
    from mansard.planning.words import deployment_text

    question = ask(model, gpu=gpu, engine=engine, weights=weights, kv=kv, layout=fixed_layout(tp, pp, dp, ep))
    deployment = one_deployment(question)
    limit = static_limit(question, deployment)
    if limit is not None:
        raise ValueError(limit)
    priced = Pricer(question).priced(deployment)
    each = batch / (deployment.layout.data_parallel * deployment.layout.pipeline_parallel)
    steps = (
        phase("prefill", priced, StepShape(num_prefills=1.0, prefill_tokens=float(prompt)), 1.0, detail=True),
        phase("decode", priced, StepShape(max(1.0, each), float(context + 1)), float(batch), detail=True),
    )
    if as_json:
        typer.echo(
            json.dumps(facts(question, deployment, steps, priced.profile.calibrated), ensure_ascii=False, indent=1)
        )
    else:
        _show(steps, f"{question.spec.name} on {deployment_text(deployment)}", priced.profile.calibrated)


def facts(question: Question, deployment: Deployment, steps: tuple[Phase, ...], calibrated: bool) -> dict[str, Any]:
    """Return the explanation as JSON values."""
    return {
        "version": 1,
        "model": question.spec.name,
        "hardware": deployment.hardware.name,
        "ridge_flops_per_byte": deployment.hardware.ridge(),
        "calibrated": calibrated,
        "phases": [asdict(step) for step in steps],
    }


def one_deployment(question: Question) -> Deployment:
    """Return the single deployment that the options name; the number of devices is the split's."""
    from mansard.cost.candidates import deployments
    from mansard.cost.op_cost import Layout

    fixed = replace(question, layout=question.layout or Layout(tensor_parallel=question.num_devices or 1))
    return next(iter(deployments(fixed)))


def _show(steps: tuple[Phase, ...], title: str, calibrated: bool) -> None:
    from rich.console import Console

    from mansard.planning.terminal import op_table, phase_table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(title, style="bold green")
    if not calibrated:
        console.print("uncalibrated for this engine and architecture", style="yellow")
    console.print(phase_table(steps))
    for step in steps:
        console.print()
        what = "tokens" if step.name == "prefill" else "sequences"
        count = step.num_tokens if step.name == "prefill" else step.concurrency
        console.print(f"{step.name}, {count:,.0f} {what}", style="bold")
        console.print(op_table(step.ops))
