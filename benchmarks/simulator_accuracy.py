"""TTFT and TPOT of measured closed-loop runs, simulated user by user.

    python benchmarks/simulator_accuracy.py [--sample 150]           judge on the half that nothing was fitted to
    python benchmarks/simulator_accuracy.py --half fitted --write    fit first_token.toml to the other half

Rows, their split into halves and the constants are those of benchmarks/accuracy.py, whose closed form is judged on the
same rows beside it. A sample takes every k-th row of the sorted list, so no seed can favour it; `--sample 0` takes all.
Lengths are drawn as the source's client draws them. Two things about the clients are not published; they were chosen on
the fitted half: how many requests a user sends (ROUNDS), and over what share of a request's life users with equal
lengths begin (RAMP; all at once in the source with varied lengths). Data-parallel ranks are one simulated lane.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy_data import MEAN_LENGTH, Row, silicon_rows
from accuracy_model import CLIENTS, Group, build_groups, model_class, model_spec, predict
from numpy.typing import NDArray

import mansard.sim as sim
from mansard.sim.deployment import Deployment
from mansard.sim.planned import PlannedRequest, TokenIds
from mansard.sim.simulation import simulate
from mansard.sim.traffic import ClosedLoop

BAR = 0.20
LEAST_LENGTH = 0.8  # of the nominal, in the source whose lengths vary
ROUNDS = 6
RAMP = 0.4
CONSTANTS = Path(sim.__file__).parent / "first_token.toml"
ENGINES = ("vllm", "sglang", "trtllm")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """One row with what was simulated and what the closed form says. Units: seconds."""

    row: Row
    ttft_s: float
    tpot_s: float
    closed_ttft_s: float
    closed_tpot_s: float

    @property
    def ttft_error(self) -> float:
        """Return simulated ÷ measured − 1."""
        return self.ttft_s / self.row.ttft_s - 1.0


def planned(row: Row, count: int, seed: int) -> Iterator[PlannedRequest]:
    """Yield requests of the row's lengths: equal, or uniform from 80 to 100 % of the nominal."""
    random, ids = np.random.default_rng(seed), TokenIds()
    low, high = (1.0, 1.0) if row.equal_lengths else (LEAST_LENGTH / MEAN_LENGTH, 1.0 / MEAN_LENGTH)
    for i in range(count):
        prompt, output = (max(1, round(n * random.uniform(low, high))) for n in (row.input_tokens, row.output_tokens))
        yield PlannedRequest(str(i), 0.0, ((ids.fresh(), prompt),), output, ids.fresh())


def simulated(group: Group, row: Row, lifetime_s: float, rounds: int = ROUNDS, seed: int = 0) -> tuple[Floats, Floats]:
    """Return TTFT and TPOT of each request; `lifetime_s` is about how long one takes."""
    priced = group.priced
    users = max(1, round(row.concurrency / row.layout.data_parallel))
    capacity = max(group.capacity, 2.0 * (row.input_tokens + row.output_tokens))  # it ran, so it fits
    deployment = Deployment(
        spec=model_spec(row.model), hardware=priced.hardware, layout=row.layout, precision=priced.precision,
        engine=row.engine, num_kv_blocks=int(capacity) // 16, profile=priced.profile, sampled_lanes=1,
    )  # fmt: skip
    ramp = RAMP * lifetime_s if row.equal_lengths else 0.0
    traffic = ClosedLoop(planned(row, rounds * users, seed), users, ramp_s=ramp)
    config = deployment.scheduler_config(traffic.longest() + 1, enable_prefix_caching=False)
    served = simulate(traffic, deployment, config).served
    client = CLIENTS.get(row.engine, 0.0) if row.equal_lengths else 0.0
    ttft = np.array([r.ttft_s + client for r in served])
    return ttft, np.array([r.tpot_s for r in served if r.tpot_s is not None])


def rank(row: Row) -> tuple[str, str, str, float, str]:
    return row.model, row.gpu, row.engine, row.concurrency, row.source


def run(half: str, sample: int) -> list[Found]:
    rows = [r for r in silicon_rows(Counter()) if r.ttft_s and r.tpot_s]
    groups = build_groups([r for r in rows if r.in_training_half == (half == "fitted")])
    closed = predict(groups)
    pairs = [(g, r) for g in groups for r in g.rows]
    order = sorted(range(len(pairs)), key=lambda i: rank(pairs[i][1]))
    found: list[Found] = []
    for i in order[:: max(1, len(order) // sample) if sample else 1]:
        group, row = pairs[i]
        ttft, tpot = simulated(group, row, row.output_tokens * float(closed["tpot"][i]))
        found.append(Found(row, float(ttft.mean()), float(tpot.mean()), float(closed["ttft"][i]),
                           float(closed["tpot"][i])))  # fmt: skip
        if sys.stderr.isatty():
            print(f"\r{len(found)}", end="", file=sys.stderr)
    return found


def report(name: str, errors: Floats) -> None:
    size = np.abs(errors)
    print(f"{name:<34} n {len(size):>5}  median {np.median(size):6.1%}  p90 {np.percentile(size, 90):6.1%}  "
          f"bias {np.median(errors):+6.1%}")  # fmt: skip


def show(found: list[Found]) -> float:
    """Print all tables; returns the median error of TTFT."""
    errors = np.array([f.ttft_error for f in found])
    report("TTFT simulated", errors)
    report("TTFT closed form", np.array([f.closed_ttft_s / f.row.ttft_s - 1.0 for f in found]))
    report("TPOT simulated", np.array([f.tpot_s / f.row.tpot_s - 1.0 for f in found]))
    report("TPOT closed form", np.array([f.closed_tpot_s / f.row.tpot_s - 1.0 for f in found]))
    keys: list[tuple[str, Callable[[Row], str]]] = [
        ("class", lambda r: model_class(r.model)),
        ("engine", lambda r: r.engine),
        ("lengths", lambda r: "equal" if r.equal_lengths else "varied"),
        ("model", lambda r: r.model),
        ("concurrency", lambda r: f"{2 ** int(np.log2(r.concurrency)):>5}+"),
        ("prompt", lambda r: f"{r.input_tokens:>8.0f}"),
    ]
    for title, key in keys:
        names = np.array([key(f.row) for f in found])
        for name in sorted(set(names)):
            report(f"  TTFT, {title} {name}", errors[names == name])
    return float(np.median(np.abs(errors)))


def fitted_constants(found: list[Found], old: dict[str, float]) -> dict[str, float]:
    """Return, by engine, the seconds to add before the first token (rows of varied lengths).

    A constant is kept only if it helps where it was not fitted: on each model and GPU, left out in turn.
    """
    result = {}
    for engine in ENGINES:
        rows = [f for f in found if f.row.engine == engine and not f.row.equal_lengths]
        cells = sorted({(f.row.model, f.row.gpu) for f in rows})
        with_it, without = [], []
        for cell in cells if len(cells) > 1 else []:
            rest = [f for f in rows if (f.row.model, f.row.gpu) != cell]
            value = best_constant(rest, old[engine])
            for f in rows:
                if (f.row.model, f.row.gpu) == cell:
                    with_it.append(abs(error_with(f, value - old[engine])))
                    without.append(abs(error_with(f, -old[engine])))
        helps = bool(with_it) and np.median(with_it) < np.median(without)
        result[engine] = best_constant(rows, old[engine]) if helps else 0.0
    return result


def error_with(found: Found, change_s: float) -> float:
    """Return the error of TTFT if requests waited `change_s` longer."""
    return (found.ttft_s + change_s) / found.row.ttft_s - 1.0


def best_constant(rows: list[Found], old: float) -> float:
    """Return the constant with the least mean error in logarithms."""

    def loss(value: float) -> float:
        ratios = [max(1.0 + error_with(f, value - old), 0.01) for f in rows]
        return float(np.mean(np.abs(np.log(ratios))))

    return round(float(min(np.arange(0.0, 0.4, 0.005), key=loss)), 4)


def main() -> int:
    import tomllib

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--half", choices=("unseen", "fitted"), default="unseen")
    parser.add_argument("--write", action="store_true", help="fit first_token.toml (with --half fitted)")
    args = parser.parse_args()
    if args.write and args.half != "fitted":
        parser.error("constants are fitted to the fitted half alone (--half fitted)")
    begin = time.perf_counter()
    found = run(args.half, args.sample)
    print(f"{len(found)} rows of the {args.half} half, {time.perf_counter() - begin:.0f} s")
    error = show(found)
    if args.half == "fitted":
        text = CONSTANTS.read_text(encoding="utf-8")
        old = {engine: entry["seconds"] for engine, entry in tomllib.loads(text).items()}
        new = fitted_constants(found, old)
        print("first token:", new)
        if args.write:
            head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
            body = "".join(f"\n[{engine}]\nseconds = {value}" for engine, value in new.items())
            CONSTANTS.write_text(f"{head}{body}\n", encoding="utf-8")
    print(json.dumps({"half": args.half, "rows": len(found), "ttft_median_error": error, "bar": BAR}))
    return 0 if error <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
