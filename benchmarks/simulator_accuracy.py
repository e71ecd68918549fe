"""TTFT and TPOT of measured closed-loop runs, simulated: users all begin at once, each sends the next on an answer.

    python benchmarks/simulator_accuracy.py [--sample 150] [--half unseen] [--rounds 10]

The rows, their split into halves and the constants are those of benchmarks/accuracy.py, whose closed form is judged on
the same rows beside it. `--sample 0` takes every row (an hour); a sample takes every k-th row of the sorted list, which
no seed can favour. Lengths are drawn as the source's client draws them; data-parallel ranks are one simulated lane with
its share of the users.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
from accuracy_data import MEAN_LENGTH, Row, silicon_rows
from accuracy_model import CLIENTS, Group, build_groups, model_class, model_spec, predict
from numpy.typing import NDArray

from mansard.sim.deployment import Deployment
from mansard.sim.planned import PlannedRequest, TokenIds
from mansard.sim.simulation import simulate
from mansard.sim.traffic import ClosedLoop
from mansard.specs.model import ModelSpec

BAR = 0.20
LEAST_LENGTH = 0.8  # of the nominal, in the source whose lengths vary
MAX_REQUESTS = 4000


def planned(row: Row, count: int, seed: int) -> Iterator[PlannedRequest]:
    """Yield requests of the row's lengths: equal, or uniform from 80 to 100 % of the nominal."""
    random, ids = np.random.default_rng(seed), TokenIds()
    low, high = (1.0, 1.0) if row.equal_lengths else (LEAST_LENGTH / MEAN_LENGTH, 1.0 / MEAN_LENGTH)
    for i in range(count):
        prompt, output = (max(1, round(n * random.uniform(low, high))) for n in (row.input_tokens, row.output_tokens))
        yield PlannedRequest(str(i), 0.0, ((ids.fresh(), prompt),), output, ids.fresh())


def simulated(group: Group, row: Row, rounds: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return TTFT and TPOT of each request."""
    priced = group.priced
    users = max(1, round(row.concurrency / row.layout.data_parallel))
    count = max(users, min(rounds * users, MAX_REQUESTS))
    deployment = Deployment(
        spec=_spec(row), hardware=priced.hardware, layout=row.layout, precision=priced.precision, engine=row.engine,
        num_kv_blocks=max(1, int(group.capacity) // 16), profile=priced.profile, sampled_lanes=1,
    )  # fmt: skip
    traffic = ClosedLoop(planned(row, count, seed), users)
    config = deployment.scheduler_config(traffic.longest() + 1, enable_prefix_caching=False)
    served = simulate(traffic, deployment, config).served
    client = CLIENTS.get(row.engine, 0.0) if row.equal_lengths else 0.0
    ttft = np.array([r.ttft_s + client for r in served])
    return ttft, np.array([r.tpot_s for r in served if r.tpot_s is not None])


def _spec(row: Row) -> ModelSpec:

    return model_spec(row.model)


def report(name: str, errors: NDArray[np.float64]) -> None:
    size = np.abs(errors)
    print(f"{name:<34} n {len(size):>5}  median {np.median(size):6.1%}  p90 {np.percentile(size, 90):6.1%}  "
          f"bias {np.median(errors):+6.1%}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--half", choices=("unseen", "fitted"), default="unseen")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--offset", type=int, default=0, help="begin the sample so many rows later")
    args = parser.parse_args()
    rows = [r for r in silicon_rows(Counter()) if r.ttft_s and r.tpot_s]
    groups = build_groups([r for r in rows if r.in_training_half == (args.half == "fitted")])
    closed = predict(groups)
    pairs = [(g, r) for g in groups for r in g.rows]
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i][1].model, pairs[i][1].gpu, pairs[i][1].concurrency,
                                                     pairs[i][1].source))  # fmt: skip
    step = max(1, len(order) // args.sample) if args.sample else 1
    chosen, begin = order[args.offset % step :: step], time.perf_counter()
    found = []
    for number, i in enumerate(chosen):
        group, row = pairs[i]
        ttft, tpot = simulated(group, row, args.rounds)
        found.append((ttft.mean(), np.median(ttft), tpot.mean()))
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(chosen)}", end="", file=sys.stderr)
    kept = [pairs[i][1] for i in chosen]
    values, measured = np.array(found), np.array([r.ttft_s for r in kept])
    print(f"{len(kept)} of {len(pairs)} rows of the {args.half} half, {args.rounds} requests a user, "
          f"{time.perf_counter() - begin:.0f} s")  # fmt: skip
    mean, median = values[:, 0] / measured - 1.0, values[:, 1] / measured - 1.0
    report("TTFT simulated (mean)", mean)
    report("TTFT simulated (median)", median)
    report("TTFT closed form", closed["ttft"][chosen] / measured - 1.0)
    report("TPOT simulated", values[:, 2] / np.array([r.tpot_s for r in kept]) - 1.0)
    report("TPOT closed form", closed["tpot"][chosen] / np.array([r.tpot_s for r in kept]) - 1.0)
    for title, key in (("class", lambda r: model_class(r.model)), ("engine", lambda r: r.engine),
                       ("lengths", lambda r: "equal" if r.equal_lengths else "varied"), ("model", lambda r: r.model),
                       ("concurrency", lambda r: f"{2 ** int(np.log2(r.concurrency)):>5}+"),
                       ("prompt", lambda r: f"{r.input_tokens:>8.0f}")):  # fmt: skip
        names = np.array([key(r) for r in kept])
        for name in sorted(set(names)):
            report(f"  TTFT, {title} {name}", mean[names == name])
    print(json.dumps({"ttft_median_error": float(np.median(np.abs(mean))), "bar": BAR, "rows": len(kept)}))
    return 0 if np.median(np.abs(mean)) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
