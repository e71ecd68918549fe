"""How long mansard takes to start: import, help screen, first token.

    python benchmarks/startup.py [--repeats 7] [--model smollm2]

Each number is the median of several fresh processes (the spread beside it), files in the page cache. Limits:
`import mansard` < 150 ms, `mansard --help` < 300 ms, first token of `mansard generate` < 1.5 s after the process
starts. The import's time is that of the statement; the others count from before the process is started. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

LIMITS_S = {"import mansard": 0.150, "mansard --help": 0.300, "first token": 1.5}
IMPORT = "import time; t = time.perf_counter(); import mansard; print(time.perf_counter() - t)"
MANSARD = (sys.executable, "-m", "mansard")


def import_s() -> float:
    """Return how long `import mansard` takes in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
    return float(done.stdout)


def help_s() -> float:
    """Return how long `mansard --help` takes, process and all."""
    start = time.perf_counter()
    subprocess.run([*MANSARD, "--help"], check=True, capture_output=True)
    return time.perf_counter() - start


def first_token_s(model: str) -> float:
    """Return when the first piece of text leaves `mansard generate`, counted from before its process starts."""
    prompt = "The three primary colours are"
    start = time.perf_counter()
    command = [*MANSARD, "generate", model, "--prompt", prompt, "--max-tokens", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1)
        elapsed = time.perf_counter() - start
        process.stdout.read()
        complaint = process.stderr.read().decode()
    if not first or process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {complaint}")
    return elapsed


def measured(measure: Callable[[], float], repeats: int) -> list[float]:
    """Return sorted times after one run that warms the page cache."""
    measure()
    return sorted(measure() for _ in range(repeats))


def report(name: str, times: Sequence[float]) -> dict[str, float]:
    middle = median(times)
    limit = LIMITS_S[name]
    verdict = "within" if middle < limit else "OVER"
    print(
        f"{name:16s} {middle * 1e3:8.1f} ms  [{times[0] * 1e3:.1f} … {times[-1] * 1e3:.1f}]  "
        f"{verdict} the limit of {limit * 1e3:.0f} ms"
    )
    return {"median_s": middle, "min_s": times[0], "max_s": times[-1], "limit_s": limit}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {load}"
    print(f"{' '.join(sys.argv)}\n{machine}; median of {arguments.repeats} processes")
    results = {
        "import mansard": report("import mansard", measured(import_s, arguments.repeats)),
        "mansard --help": report("mansard --help", measured(help_s, arguments.repeats)),
        "first token": report("first token", measured(lambda: first_token_s(arguments.model), arguments.repeats)),
    }
    print(json.dumps({"benchmark": "startup", "machine": machine, "model": arguments.model, "results": results}))


if __name__ == "__main__":
    main()
