"""Answers that notice when the client goes away: server-sent events, and plain replies that are still being
made.

A framework's streaming response may learn of a disconnect only when it next writes, which for a queued
request is never, and a plain handler never learns of it at all. Here a task listens while the work goes on
and cancels it, so that the engine frees the request's blocks. Format: HTML Standard, section 9.2 (server-sent
events).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

T = TypeVar("T")


def encode_json(data: Mapping[str, Any]) -> bytes:
    """Return `data` as compact UTF-8 JSON; a number that is not finite is an error."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")  # a lone surrogate cannot be sent as UTF-8


def frame(data: Mapping[str, Any]) -> bytes:
    """Return one event with `data` as JSON."""
    return b"data: " + encode_json(data) + b"\n\n"


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` answers, or cancel it and return None when the client leaves first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return None
    finally:
        await _cancel(leaving)
        await _cancel(working)


class EventStream(Response):
    """An SSE response fed by an async generator, which is closed as soon as the client disconnects."""

    def __init__(self, source: AsyncGenerator[bytes, None], headers: Mapping[str, str], keep_alive_s: float) -> None:
        self.source = source
        self.keep_alive_s = keep_alive_s
        self.status_code = 200
        self.background = None
        given = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self.raw_headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the source's frames until it ends or the client leaves."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        quiet = _KeepAlive(send, self.keep_alive_s)
        keeping = asyncio.ensure_future(quiet.run())
        try:
            await unless_disconnected(receive, self._send_all(quiet))
        finally:
            await _cancel(keeping)
            await self.source.aclose()

    async def _send_all(self, quiet: _KeepAlive) -> None:
        with contextlib.suppress(OSError):  # the client left between two frames
            async for body in self.source:
                await quiet.send(body)
            await quiet.send(b"", more=False)


class _KeepAlive:
    """Sends frames, and a comment when none was sent for a while."""

    def __init__(self, send: Send, interval_s: float) -> None:
        self._send = send
        self._interval_s = interval_s
        self._num_sent = 0

    async def send(self, body: bytes, more: bool = True) -> None:
        self._num_sent += 1
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def run(self) -> None:
        while True:
            before = self._num_sent
            await asyncio.sleep(self._interval_s)
            if self._num_sent == before:
                with contextlib.suppress(OSError):
                    await self.send(KEEP_ALIVE)


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel `task` and wait until it has ended; what it would have answered is of no use any more."""
    if task.done():
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
