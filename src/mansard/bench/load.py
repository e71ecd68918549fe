"""run_load: sends requests when they are due and collects what came of them.

Open loop: a request has a time at which it is due, whatever happened to those before it; a cap on concurrency makes it
wait in the client, and that waiting is part of its latency. Closed loop: as many requests as the concurrency are always
under way. Warm-up requests are the first of the same stream under the same cap, with no pause behind them, so that the
measured part begins in the middle of the flow. All times are the event loop's, so a virtual loop tests this code whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mansard.bench.metrics import mark_phases
from mansard.bench.prompts import Prompt
from mansard.bench.records import RequestRecord


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send: `at_s` after the start in an open loop, and what to ask."""

    index: int
    prompt: Prompt
    num_output_tokens: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """All requests of a run, the first `num_warmup` of them not measured, nor the `num_opening` after those.

    `max_concurrency` drives a closed loop and caps an open one; None: no cap.
    """

    requests: Sequence[PlannedRequest]
    is_open_loop: bool
    max_concurrency: int | None = None
    num_warmup: int = 0
    num_opening: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises: ValueError with the number and its limit.
        """
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"concurrency is {self.max_concurrency}; it must be at least 1")
        if not self.is_open_loop and self.max_concurrency is None:
            raise ValueError("a closed loop needs a concurrency (or give a rate for an open loop)")
        apart = self.num_warmup + self.num_opening
        if apart >= len(self.requests):
            raise ValueError(
                f"{apart} of {len(self.requests)} requests are warm-up and opening wave; send more requests "
                "(or lower --warmup)"
            )


class Sender(Protocol):
    """Sends one request; never raises for what the server does, and answers a cancellation with a record."""

    async def send(self, request: PlannedRequest, scheduled_s: float) -> RequestRecord:
        """Return what was seen of `request`, due at `scheduled_s` on the loop's clock."""
        ...


async def run_load(
    plan: LoadPlan,
    sender: Sender,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> list[RequestRecord]:
    """Run `plan` and return its records with their phases; `stop` ends it early and keeps what is there."""
    run = _Run(plan, sender, on_record)
    drive = asyncio.ensure_future(run.open_loop() if plan.is_open_loop else run.closed_loop())
    waiting = [drive] if stop is None else [drive, asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if drive.done():
            await drive
    finally:
        for task in waiting:
            task.cancel()
        await run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drive
    return mark_phases(run.records, plan.num_warmup, plan.num_opening)


class _Run:
    """The tasks of one run."""

    def __init__(self, plan: LoadPlan, sender: Sender, on_record: Callable[[RequestRecord], None]) -> None:
        self._plan = plan
        self._sender = sender
        self._on_record = on_record
        self._tasks: set[asyncio.Task[None]] = set()
        self.records: list[RequestRecord] = []

    async def open_loop(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        limit = self._plan.max_concurrency
        slots = None if limit is None else asyncio.Semaphore(limit)
        for request in self._plan.requests:
            due_s = start_s + request.at_s
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            self._start(self._when_free(request, due_s, slots))
        await self._all_ended()

    async def closed_loop(self) -> None:
        assert self._plan.max_concurrency is not None
        left = iter(self._plan.requests)

        async def worker() -> None:
            for request in left:
                await self._send(request, asyncio.get_running_loop().time())

        for _ in range(min(self._plan.max_concurrency, len(self._plan.requests))):
            self._start(worker())
        await self._all_ended()

    async def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._all_ended()

    async def _when_free(self, request: PlannedRequest, due_s: float, slots: asyncio.Semaphore | None) -> None:
        if slots is None:
            await self._send(request, due_s)
            return
        async with slots:
            await self._send(request, due_s)

    async def _send(self, request: PlannedRequest, due_s: float) -> None:
        record = await self._sender.send(request, due_s)
        self.records.append(record)
        self._on_record(record)
        if record.was_cancelled:
            raise asyncio.CancelledError

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _all_ended(self) -> None:
        while self._tasks:
            for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
