"""`mansard bench`: measure a server or the engine, compare results, hold limits in CI."""

from __future__ import annotations

import typer

from mansard.commands.bench_compare import compare
from mansard.commands.bench_engine import latency, offline
from mansard.commands.bench_serve import serve, sweep

bench = typer.Typer(help="Measure a server or the engine, with the roof beside every number.", no_args_is_help=True)
bench.command("serve")(serve)
bench.command("sweep")(sweep)
bench.command("offline")(offline)
bench.command("latency")(latency)
bench.command("compare")(compare)
