"""How fast the simulator is: 100,000 requests of the Azure conversation trace on Llama-3.1-70B × 8 H100, one core.

    python benchmarks/simulator_speed.py [--requests 100000] [--rate 5.53] [--profile]

Prints wall and processor time (they differ where others use the machine), and where the time goes. The target is 20 s.
The same run without stretches shows what taking them at once saves; it is simulated with fewer requests and scaled.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import sys
import time
from dataclasses import dataclass

from mansard.cost.op_cost import Layout
from mansard.sim.deployment import Deployment
from mansard.sim.planned import TokenIds
from mansard.sim.simulation import simulate
from mansard.sim.trace import planned_requests, read_trace
from mansard.sim.traffic import OpenLoop
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset

TARGET_S = 20.0
OWN_RATE = 5.53  # requests per second of the trace itself


@dataclass(frozen=True)
class Timing:
    """One run. Units: seconds."""

    wall_s: float
    cpu_s: float
    virtual_s: float
    num_steps: int
    num_segments: int


def run(num_requests: int, rate: float, fast: bool = True) -> Timing:
    deployment = Deployment(preset("llama-3.1-70b"), find_hardware("h100-sxm"), Layout(tensor_parallel=8))
    config = deployment.scheduler_config(16384, enable_prefix_caching=False)
    wall, cpu = time.perf_counter(), time.process_time()
    traffic = OpenLoop(planned_requests(read_trace("azure-conv"), TokenIds(), rate, num_requests))
    result = simulate(traffic, deployment, config, fast=fast)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    timeline = result.replicas[0].timeline
    assert len(result.served) == num_requests
    return Timing(wall, cpu, result.duration_s, timeline.num_steps, len(timeline))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=OWN_RATE)
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    args = parser.parse_args()
    if args.profile:
        profiler = cProfile.Profile()
        profiler.runcall(run, args.requests, args.rate)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        return 0
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, one process")
    found = run(args.requests, args.rate)
    print(
        f"{args.requests:,} requests at {args.rate:g}/s: wall {found.wall_s:.1f} s, processor {found.cpu_s:.1f} s "
        f"({1e6 * found.cpu_s / args.requests:.0f} µs a request), {found.num_steps:,} steps in {found.num_segments:,} "
        f"segments, {found.virtual_s / found.wall_s:,.0f} times real time"
    )
    few = max(1, args.requests // 20)
    stepped, same = run(few, args.rate, fast=False), run(few, args.rate)
    print(f"stretches save a factor of {stepped.cpu_s / same.cpu_s:.1f} (of {few:,} requests)")
    print(json.dumps({"requests": args.requests, "rate": args.rate, "wall_s": found.wall_s, "cpu_s": found.cpu_s,
                      "target_s": TARGET_S}))  # fmt: skip
    return 0 if found.cpu_s <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
