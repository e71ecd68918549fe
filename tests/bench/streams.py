"""Scripted streams and a loop whose time jumps: everything about time in the bench's tests, with no clock."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mansard.bench.load import PlannedRequest
from mansard.bench.records import Chunk, RequestRecord
from mansard.bench.reply import Reply

T = TypeVar("T")
HEADERS = "text/event-stream; charset=utf-8"


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def role() -> bytes:
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def content(text: str = " word", **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


def finish(reason: str = "stop") -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(output: int, prompt: int = 10, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}})


DONE = event(b"[DONE]")


def play(frames: Iterable[tuple[float, bytes]], *, status: int = 200, scheduled_s: float = 0.0) -> Reply:
    """Feed frames at their times through the code that a socket's bytes go through."""
    reply = Reply(0, scheduled_s, sent_s=scheduled_s, keeps_text=True)
    reply.begin(status, HEADERS)
    now = scheduled_s
    for now, data in frames:
        reply.feed(data, now)
    reply.end(now)
    return reply


def record(
    index: int = 0, *, at: float = 0.0, ttft: float | None = 0.5, gap: float = 0.0, tokens: int = 1, **more: Any
) -> RequestRecord:
    """Return a request sent at `at` whose tokens come one by one; None: none come."""
    chunks = () if ttft is None else tuple(Chunk(at + ttft + i * gap, 1) for i in range(tokens))
    fields: dict[str, Any] = {"sent_s": at, "num_output_tokens": None if ttft is None else tokens, **more}
    return RequestRecord(index, at, chunks=chunks, **fields)


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: tells the loop how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.waited_s += timeout
        assert ready or timeout is not None, "nothing will ever happen in this loop"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


@dataclass
class ScriptedServer:
    """A sender that takes `ttft_s`, then a gap for each further token; notes how many run at once."""

    ttft_s: float = 0.5
    gap_s: float = 0.0
    num_tokens: int = 1
    slow: dict[int, float] = field(default_factory=dict)  # TTFT of single requests
    num_running: int = 0
    most_running: int = 0
    order: list[int] = field(default_factory=list)

    async def send(self, request: PlannedRequest, scheduled_s: float) -> RequestRecord:
        now = asyncio.get_running_loop().time
        reply = Reply(request.index, scheduled_s, sent_s=now())
        reply.begin(200, HEADERS)
        self.num_running += 1
        self.order.append(request.index)
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(self.slow.get(request.index, self.ttft_s))
            for i in range(self.num_tokens):
                if i:
                    await asyncio.sleep(self.gap_s)
                reply.feed(content(), now())
            reply.feed(finish() + usage(self.num_tokens) + DONE, now())
            reply.end(now())
        except asyncio.CancelledError:
            reply.fail("cancelled by the run", "", now())
        finally:
            self.num_running -= 1
        return reply.record()
