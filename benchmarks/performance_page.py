"""docs/performance.md from the results in benchmarks/results: speeds beside the peers', with their spread.

python benchmarks/performance_page.py --write     # or --check, which fails when the page is stale
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"

INTRODUCTION = """# Performance

How fast the engine is beside its peers. Every table comes from one interleaved run: each round runs every engine once,
so that a noisy neighbour hits all alike; the ratio is the median of the rounds' own ratios. Only the forward pass with
its logits is timed, for every engine. Run it on a machine with nothing else to do: with busy cores all engines
collapse, and llama.cpp most.

int8 and int16 are what quantized weights are multiplied with (`--activations`). int8, the default, is what llama.cpp
does too, and as noisy; int16 gave the text of full precision on all twenty prompts of the tests.

This page is written by `python benchmarks/performance_page.py --write`.
"""

LIMITS = """
## The server

32 streaming clients, SmolLM2-135M, clients and server on the same two cores (`python benchmarks/server_overhead.py`,
2026-12-01, load 1.2): HTTP, tokenizing, scheduling and detokenizing add 8 % to the bare engine's time (6 % of processor
time; medians of three rounds each, which spread by 10 %).

Two minutes of abuse (`python benchmarks/soak.py --seconds 120`, 2026-12-01, a quiet machine): 32 clients, 2,101
requests, 176 of them left by their clients, 192 malformed, 652 preemptions in a pool kept too small: no wrong answer,
RSS +1.2 % after warm-up. While an 8k prompt was filled, others waited at most 1.76 s for a token, and the longest step
took 1.76 s.

## What is not measured yet

- vLLM's CPU back end and OpenVINO GenAI, other models and formats, peak memory of the peers.
- Processors with AMX: there are no tile kernels yet, so they run the AVX-512 ones.
- A bar for the share of the memory roof. At batch 1 this model reads 97 MB a token: 264 tokens/s are 26 GB/s, of 55
  GB/s that two threads read at best on this machine in a quiet minute; what else bounds it was not profiled.
"""


def section(result: dict[str, Any]) -> str:
    """Return one result as a table."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    lines = [
        f"\n## {result['model']}, {result['host']}, {result['threads']} threads",
        f"\n`{result['command']}`, {result['date']}; {versions}; {result['kernels']} kernels. Tokens/s.\n",
        "| workload | engine | median | least … most | ÷ llama.cpp |",
        "|---|---|---|---|---|",
    ]
    for work, engines in result["tokens_per_s"].items():
        peer = engines["llama.cpp"]
        for name, rates in engines.items():
            ratio = statistics.median(a / b for a, b in zip(rates, peer, strict=True))
            spread = f"{min(rates):,.0f} … {max(rates):,.0f}"
            lines.append(f"| {work} | {name} | {statistics.median(rates):,.0f} | {spread} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole document."""
    results = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(RESULTS.glob("peers-*.json"))]
    return INTRODUCTION + "".join(section(r) for r in results) + LIMITS


def main() -> None:
    """Write the page, or check that it is what the results say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.write:
        PAGE.write_text(page(), encoding="utf-8")
    elif args.check and PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/performance.md is stale; run python benchmarks/performance_page.py --write")


if __name__ == "__main__":
    main()
