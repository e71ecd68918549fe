"""Recording a run: what was asked, what each step computed and how long it took, as JSON lines without any text.

`RecordingExecutor` wraps any executor and writes the shape and time of its plans: enough to calibrate. A
`RecordingEngine` also writes what comes and goes, so that the run can be replayed plan by plan. Prompts and outputs are
written as keyed hashes of their full blocks (the key is drawn for the file and thrown away): equal prefixes stay equal,
and nothing else of the text is left.

    {"event": "run", "version": 1, "block_size": 16, "num_blocks": …, "config": {…}, …}
    {"event": "add", "t": …, "id": …, "num_tokens": …, "blocks": ["hash", …], "max_tokens": …, …}
    {"event": "step", "t": …, "elapsed_s": …, "seqs": [[id, start, tokens, logits], …], "copies": …, "tables": …}
    {"event": "end", "t": …, "seq": …, "num_tokens": …, "reason": …, "blocks": […], "by": "step" | "caller"}
    {"event": "idle", "t": …}  a step that ran nothing    {"event": "failed", "t": …}  the executor raised
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

from mansard.core import types
from mansard.core.engine import Engine, EngineStats
from mansard.core.prefix_hash import Blake2PrefixHash
from mansard.core.types import Clock, Executor, FinishReason, Request, SequenceOutput, StepPlan, StepResult

VERSION = 1
HASH_CHARACTERS = 16  # of a block's hash in the file: 64 bits


class RunLog:
    """Writes events as JSON lines; close it at the end, or use it in a `with`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        self._file.write(json.dumps({"event": event, **values}, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordingExecutor:
    """Runs plans with another executor and writes the shape and the time of each."""

    def __init__(self, executor: Executor, log: RunLog, clock: Clock) -> None:
        self.executor = executor
        self.num_steps = 0
        self._log, self._clock = log, clock

    def execute(self, plan: StepPlan) -> StepResult:
        """Run `plan`; see `Executor`."""
        start = self._clock.now()
        self.num_steps += 1
        try:
            result = self.executor.execute(plan)
        except Exception:
            self._log.write("failed", t=start, **plan_shape(plan))
            raise
        self._log.write("step", t=start, elapsed_s=result.elapsed_s, **plan_shape(plan))
        return result


class RecordingEngine:
    """An engine with the same methods as `Engine`, which writes all that reaches it.

    model, weights, kv: names for the reader of the file; `mansard calibrate` prices the model they say.
    """

    def __init__(self, engine: Engine, log: RunLog, model: str = "", weights: str = "", kv: str = "") -> None:
        self._engine, self._log = engine, log
        self._recorder = RecordingExecutor(engine.executor, log, engine.clock)
        engine.executor = self._recorder
        blocks = engine.scheduler.blocks
        self._size = blocks.block_size
        self._hash = Blake2PrefixHash(secrets.token_bytes(32))
        self._ended: dict[str, int] = {}  # request → how many of its sequences have ended
        self._num_hashed: dict[str, tuple[int, bytes]] = {}  # request → (full blocks of its prompt, the last's hash)
        log.write(
            "run", version=VERSION, model=model, weights=weights, kv=kv, block_size=self._size,
            num_blocks=blocks.num_blocks, config=asdict(engine.scheduler.config),
        )  # fmt: skip

    @property
    def clock(self) -> Clock:
        """Return the engine's clock."""
        return self._engine.clock

    @property
    def scheduler(self) -> Any:
        """Return the engine's scheduler."""
        return self._engine.scheduler

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises: ValueError as `Engine.add`; a refused request is not written.
        """
        self._engine.add(request)
        tokens, params = request.prompt_token_ids, request.params
        names, last = self._names(self._hash.root(request.cache_salt), tokens, 0)
        self._num_hashed[request.id] = (len(names), last)
        self._log.write(
            "add", t=self._now(), id=request.id, num_tokens=len(tokens), blocks=names, max_tokens=params.max_tokens,
            n=params.n, priority=request.priority, scores_prompt=params.prompt_logprobs is not None,
        )  # fmt: skip

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """End all sequences of a request."""
        outputs = self._engine.abort(request_id)
        if outputs:
            self._log.write("abort", t=self._now(), id=request_id)
        self._write_ends(outputs, "caller")
        return outputs

    def finish(self, sequence_id: str, reason: FinishReason = FinishReason.STOP) -> SequenceOutput | None:
        """End one sequence, as a stop string does."""
        output = self._engine.finish(sequence_id, reason)
        if output is not None:
            self._log.write("finish", t=self._now(), seq=sequence_id, reason=reason.value)
            self._write_ends([output], "caller")
        return output

    def step(self) -> list[SequenceOutput]:
        """Run one step."""
        start, before = self._now(), self._recorder.num_steps
        outputs = self._engine.step()
        if self._recorder.num_steps == before:
            self._log.write("idle", t=start)
        self._write_ends([o for o in outputs if o.finish_reason is not None], "step")
        return outputs

    def has_unfinished(self) -> bool:
        """Say whether any sequence waits or runs."""
        return self._engine.has_unfinished()

    def next_wakeup(self) -> float | None:
        """Return when `step` has work."""
        return self._engine.next_wakeup()

    def stats(self) -> EngineStats:
        """Return the engine's gauges and counters."""
        return self._engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self._engine.scheduler.blocks.reset_prefix_cache()
        self._log.write("reset", t=self._now())

    def _now(self) -> float:
        return self._engine.clock.now()

    def _write_ends(self, outputs: list[SequenceOutput], by: str) -> None:
        for output in outputs:
            assert output.finish_reason is not None
            sequence = output.sequence
            count, parent = self._num_hashed[sequence.request.id]
            names, _ = self._names(parent, sequence.token_ids, count)
            self._log.write(
                "end", t=self._now(), seq=sequence.id, num_tokens=len(sequence.token_ids),
                reason=output.finish_reason.value, blocks=names, by=by,
            )  # fmt: skip
            if not self._is_under_way(sequence):
                del self._num_hashed[sequence.request.id]

    def _is_under_way(self, sequence: types.Sequence) -> bool:
        """Say whether a request has other sequences that have not ended; its first sequences may end before."""
        request = sequence.request
        self._ended[request.id] = self._ended.get(request.id, 0) + 1
        if self._ended[request.id] < request.params.n:
            return True
        del self._ended[request.id]
        return False

    def _names(self, parent: bytes, tokens: Sequence[int], first_block: int) -> tuple[list[str], bytes]:
        """Return the hashes of the full blocks from `first_block` on, as written, and the last one whole."""
        found: list[str] = []
        for begin in range(first_block * self._size, len(tokens) // self._size * self._size, self._size):
            parent = self._hash.extend(parent, tokens[begin : begin + self._size])
            found.append(parent.hex()[:HASH_CHARACTERS])
        return found, parent


def plan_shape(plan: StepPlan) -> dict[str, Any]:
    """Return what two plans must agree in to be the same, but for the tokens' values.

    `tables` is a checksum of every sequence's block table.
    """
    tables = 0
    for scheduled in plan.sequences:
        tables = crc32(repr(scheduled.block_ids).encode(), tables)
    return {
        "seqs": [[s.sequence_id, s.start, len(s.token_ids), s.num_logits] for s in plan.sequences],
        "copies": len(plan.block_copies),
        "tables": tables,
    }
