"""Mansard's engine beside llama.cpp on the same file, the same threads and in one interleaved run.

    python benchmarks/peers.py --model smollm2 --rounds 7

Needs `pip install llama-cpp-python==0.3.36` (it compiles llama.cpp for this machine, about ten minutes). Each round
runs every engine once on each workload, so that a noisy neighbour hits all alike; the report gives medians and best
rounds. Decode: B sequences that each hold 64 tokens of context, a number of steps. Prefill: one prompt. Only the
forward pass with its logits is timed: no sampling, no detokenizing, for either. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from mansard.bench.machine_roof import host_name
from mansard.core.types import Request, SamplingParams, ScheduledSequence, StepPlan
from mansard.runtime.loader import load_model
from mansard.runtime.model import EngineOptions

CONTEXT = 64
MAX_BATCH = 32


@dataclass(frozen=True)
class Workload:
    """What is timed: `batch` sequences, `tokens` each in one pass, `passes` of them."""

    name: str
    batch: int
    tokens: int
    passes: int


WORKLOADS = (
    Workload("decode, batch 1", 1, 1, 24),
    Workload("decode, batch 8", 8, 1, 8),
    Workload("decode, batch 32", 32, 1, 4),
    Workload("prefill 512", 1, 512, 1),
)


class Engine(Protocol):
    """One engine with a model loaded."""

    name: str

    def run(self, work: Workload) -> float:
        """Return the seconds that the workload takes."""
        ...


class Mansard:
    """This package's native executor, through step plans."""

    def __init__(self, model: str, threads: int, activations: str = "int8") -> None:
        options = EngineOptions(
            num_threads=threads,
            max_model_len=1024,
            max_num_seqs=MAX_BATCH,
            activations=activations,  # type: ignore[arg-type]
        )
        self.model = load_model(model, options)
        self.name = "mansard" if activations == "int8" else f"mansard {activations}"

    def run(self, work: Workload) -> float:
        """Fill the contexts, then time the passes."""
        if work.tokens == 1:
            for s in range(work.batch):
                self._pass([self._sequence(s, 0, CONTEXT)])
        plans = [self._plan(work, p) for p in range(work.passes)]
        start = time.perf_counter()
        for plan in plans:
            self._pass(plan)
        return time.perf_counter() - start

    def _plan(self, work: Workload, number: int) -> list[ScheduledSequence]:
        start = CONTEXT + number if work.tokens == 1 else 0
        return [self._sequence(s, start, work.tokens) for s in range(work.batch)]

    def _sequence(self, s: int, start: int, count: int) -> ScheduledSequence:
        tokens = tuple(100 + (7 * s + start + i) % 5000 for i in range(count))
        blocks = tuple(range(s * 64, s * 64 + 64))
        request = Request(str(s), tokens, SamplingParams(temperature=0.0))
        return ScheduledSequence(str(s), start, tokens, blocks, 1, request)

    def _pass(self, sequences: list[ScheduledSequence]) -> None:
        self.model.executor.compute(StepPlan(tuple(sequences)))  # type: ignore[attr-defined]


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level interface: one llama_decode a pass."""

    name = "llama.cpp"

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = MAX_BATCH * 640  # llama.cpp gives each sequence its share
        context.n_seq_max = MAX_BATCH
        context.n_batch = context.n_ubatch = 512
        context.n_threads = context.n_threads_batch = threads
        self.weights = llama_cpp.llama_model_load_from_file(path.encode(), model)
        if not self.weights:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.context = llama_cpp.llama_init_from_model(self.weights, context)

    def run(self, work: Workload) -> float:
        """Clear the cache, fill the contexts, then time the passes."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        if work.tokens == 1:
            for s in range(work.batch):
                self._pass([s], 0, CONTEXT)
        start = time.perf_counter()
        for number in range(work.passes):
            self._pass(range(work.batch), CONTEXT + number if work.tokens == 1 else 0, work.tokens)
        return time.perf_counter() - start

    def _pass(self, sequences: Any, start: int, count: int) -> None:
        api, total = self.api, len(sequences) * count
        batch = api.llama_batch_init(total, 0, 1)
        batch.n_tokens = total
        for i, (s, t) in enumerate((s, t) for s in sequences for t in range(count)):
            batch.token[i] = 100 + (7 * s + start + t) % 5000
            batch.pos[i] = start + t
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = s
            batch.logits[i] = int(t == count - 1)
        if api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        api.llama_get_logits_ith(self.context, total - 1)  # waits for the result
        api.llama_batch_free(batch)


def rates(
    engines: list[Engine], works: tuple[Workload, ...], rounds: int
) -> Iterator[tuple[Workload, dict[str, list[float]]]]:
    """Yield each workload with every engine's tokens/s, round by round, after one round of warm-up."""
    for work in works:
        found: dict[str, list[float]] = {e.name: [] for e in engines}
        for number in range(rounds + 1):
            for engine in engines:
                time.sleep(0.02)  # lets the other engine's threads go to sleep
                seconds = engine.run(work)
                if number:
                    found[engine.name].append(work.batch * work.tokens * work.passes / seconds)
        yield work, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--activations", default="int8,int16", help="the engine's own variants")
    parser.add_argument("--only", default="", help="part of a workload's name")
    args = parser.parse_args()
    engines: list[Engine] = [Mansard(args.model, args.threads, a) for a in args.activations.split(",")]
    from mansard.loading.model_files import locate

    engines.append(LlamaCpp(str(locate(args.model).root), args.threads))
    import llama_cpp

    print(f"{host_name()}, {args.threads} threads, Python {platform.python_version()}, model {args.model}")
    print(f"llama-cpp-python {llama_cpp.__version__}; mansard kernels {engines[0].model.executor.isa}")  # type: ignore[attr-defined]
    works = tuple(w for w in WORKLOADS if args.only in w.name)
    report: dict[str, Any] = {"host": host_name(), "threads": args.threads, "model": args.model, "tokens_per_s": {}}
    peer = engines[-1].name
    for work, found in rates(engines, works, args.rounds):
        report["tokens_per_s"][work.name] = found
        theirs = found[peer]
        for name, values in found.items():
            ratio = statistics.median(a / b for a, b in zip(values, theirs, strict=True))
            print(
                f"{work.name:18s} {name:16s} median {statistics.median(values):8.1f}  best {max(values):8.1f} tokens/s"
                f"  {ratio:5.2f} x {peer} (median of rounds), {max(values) / max(theirs):5.2f} x (bests)"
            )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
