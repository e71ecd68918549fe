"""What the server costs beside the bare engine: 32 streaming clients against the same requests stepped directly.

    python benchmarks/server_overhead.py

Bare: the core engine in a loop, token ids in and out: scheduling, the model, sampling; no text, no thread, no HTTP.
Server: `mansard serve`'s application in a process of its own, and the clients in another one that only reads. The two
take turns; the overhead is the ratio of the medians minus one. Clients and server share the machine's cores with the
model, so on two cores every microsecond of either counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard import __version__
from mansard.core.block_manager import BlockManager
from mansard.core.clock import WallClock
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import Request, SamplingParams
from mansard.runtime.model import EngineOptions, LoadedModel, load

CONTEXT = 1024


def prompts_of(num_clients: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Return prompts that differ from their first token on."""
    draw = random.Random(seed)
    return [[1000 + i, *(draw.randrange(1000, 20_000) for _ in range(num_tokens - 1))] for i in range(num_clients)]


@dataclass(frozen=True)
class Taken:
    """How long a run took, and how much processor time of all threads."""

    wall_s: float
    cpu_s: float


def bare(model: LoadedModel, options: EngineOptions, prompts: list[list[int]], num_output: int) -> Taken:
    """Return what the bare engine takes."""
    config = options.scheduler_config(model.max_model_len)
    scheduler = Scheduler(config, BlockManager(model.num_blocks, model.block_size))
    engine = Engine(model.executor, scheduler, WallClock(time.perf_counter), model.eos_token_ids, model.spec.vocab_size)
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    began, cpu = time.perf_counter(), time.process_time()
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), tuple(prompt), params))
    while engine.has_unfinished():
        engine.step()
    return Taken(time.perf_counter() - began, time.process_time() - cpu)


async def clients_s(url: str, prompts: list[list[int]], num_output: int) -> float:
    """Return how long streaming clients take, from the first request to the last token."""
    host, port = url.removeprefix("http://").split(":")
    counts = [0] * len(prompts)

    async def ask(i: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        body = {"prompt": prompts[i], "max_tokens": num_output, "ignore_eos": True, "temperature": 0, "stream": True}
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + data)
        while b"[DONE]" not in (chunk := await reader.read(1 << 16)):
            assert chunk, "the server closed"
            counts[i] += chunk.count(b"data: {")
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask(i) for i in range(len(prompts))))
    return time.perf_counter() - began


def run_clients(url: str, num_clients: int, num_prompt: int, num_output: int, seed: int) -> float:
    """Run the clients in a process of their own."""
    numbers = [str(n) for n in (num_clients, num_prompt, num_output, seed)]
    command = [sys.executable, __file__, "--clients-of", url, *numbers]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_server(model: str) -> tuple[subprocess.Popen[str], str]:
    """Start `mansard serve` and return it with its address."""
    command = [sys.executable, "-m", "mansard", "serve", model, "--port", "0", "--max-model-len", str(CONTEXT)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("serving on "):
            return process, line.split()[2].removesuffix("/v1")
    raise RuntimeError("the server did not start")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Take turns and return the figures."""
    options = EngineOptions(max_model_len=CONTEXT)
    model = load(given.model, options)
    process, url = start_server(given.model)
    alone: list[Taken] = []
    served: list[Taken] = []
    try:
        for i in range(given.repeats + 1):
            prompts = prompts_of(given.clients, given.prompt_tokens, seed=i)
            first = bare(model, options, prompts, given.output_tokens)
            before = cpu_s(process.pid)
            wall_s = run_clients(url, given.clients, given.prompt_tokens, given.output_tokens, i)
            if i:  # the first turn warms up
                alone.append(first)
                served.append(Taken(wall_s, cpu_s(process.pid) - before))
    finally:
        process.terminate()
        process.wait()
    tokens = given.clients * given.output_tokens
    medians = [statistics.median(taken.wall_s for taken in runs) for runs in (alone, served)]
    cpu = [statistics.median(taken.cpu_s for taken in runs) for runs in (alone, served)]
    return {
        "bare_s": [round(taken.wall_s, 3) for taken in alone],
        "server_s": [round(taken.wall_s, 3) for taken in served],
        "bare_tokens_per_s": round(tokens / medians[0], 1),
        "server_tokens_per_s": round(tokens / medians[1], 1),
        "overhead": round(medians[1] / medians[0] - 1, 4),
        "bare_cpu_s": round(cpu[0], 3),
        "server_cpu_s": round(cpu[1], 3),
        "cpu_overhead": round(cpu[1] / cpu[0] - 1, 4),
        "load_1min": os.getloadavg()[0],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients-of", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients_of:
        url, *numbers = given.clients_of
        num_clients, num_prompt, num_output, seed = map(int, numbers)
        print(asyncio.run(clients_s(url, prompts_of(num_clients, num_prompt, seed), num_output)))
        return
    print(f"mansard {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores: {' '.join(sys.argv)}")
    print(json.dumps(measure(given)))


if __name__ == "__main__":
    main()
