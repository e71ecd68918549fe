"""`mansard bench compare`: two results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mansard.commands import options


def compare(
    before: Annotated[Path, typer.Argument(help="A result of --json.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    fail_if_worse: Annotated[bool, typer.Option(help="Exit 1 when a latency is worse beyond the noise.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare two results of the same load; refuses what cannot be compared."""
    import json
    from dataclasses import asdict

    from mansard.bench.compare import compare_results
    from mansard.bench.result import read_result
    from mansard.bench.terminal import open_console, show_differences

    differences = compare_results(read_result(before), read_result(after))
    if as_json:
        typer.echo(json.dumps([{**asdict(d), "ratio": d.ratio} for d in differences]))
    else:
        show_differences(open_console(), differences)
    if fail_if_worse and any(d.verdict == "worse" for d in differences):
        raise typer.Exit(1)
