"""AsyncEngine: the engine for asyncio, as the server uses it.

Steps run in the engine's thread, tokenizing and templates in a small pool, and the event loop only routes
deltas: one callback per step, however many sequences it had. Leaving a stream early, by closing or cancelling
it, aborts its request; a request that ended by itself is never aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mansard.core.engine import EngineStats
from mansard.runtime.engine_thread import EngineThread, OnStep
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.prompts import PromptPreparer, Submission
from mansard.runtime.text_engine import TextEngine

T = TypeVar("T")
Observe = Callable[[Sequence[SequenceDelta]], None]

_PREPARING_THREADS = 2
_DRAIN_POLL_S = 0.02
_STOP_LIMIT_S = 10.0  # for a step that does not end


class AsyncEngine:
    """Streams a TextEngine's requests to coroutines of one event loop.

    observe, on_step: called in the engine's thread with each step's deltas and seconds, for metrics.
    """

    def __init__(
        self,
        engine: TextEngine,
        observe: Observe | None = None,
        stall_after_s: float = 120.0,
        on_step: OnStep | None = None,
    ) -> None:
        self._engine = engine
        self._observe = observe
        self._thread = EngineThread(engine, self._deliver, stall_after_s, on_step)
        self._pool = ThreadPoolExecutor(_PREPARING_THREADS, thread_name_prefix="mansard-prepare")
        self._queues: dict[str, asyncio.Queue[SequenceDelta | None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the engine's thread; call it in the event loop that will consume the streams."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def prompts(self) -> PromptPreparer:
        """Return what prepares prompts; call its methods through `in_pool`."""
        return self._engine.prompts

    @property
    def enable_priority(self) -> bool:
        """Say whether requests may choose their priority."""
        return self._engine.options.enable_priority

    @property
    def num_requests(self) -> int:
        """Return how many streams are open."""
        return len(self._queues)

    def now(self) -> float:
        """Return the engine's time in seconds, for arrival times."""
        return self._engine.now()

    def stats(self) -> EngineStats:
        """Return the engine's gauges and counters."""
        return self._engine.stats()

    def health(self) -> str | None:
        """Return what is wrong with the engine, or None."""
        return self._thread.health()

    async def in_pool(self, work: Callable[[], T]) -> T:
        """Run `work` (tokenizing, rendering) off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def stream(
        self, *submissions: Submission, timeout_s: float | None = None
    ) -> AsyncGenerator[SequenceDelta, None]:
        """Submit requests and yield the deltas of all their sequences as they come, until each has ended.

        Raises: ValueError when a request's id is in use; TimeoutError when they have not ended in time.
        """
        queue: asyncio.Queue[SequenceDelta | None] = asyncio.Queue()
        open_ids: set[str] = set()
        alarm = None  # None in the queue says that the time is over
        if timeout_s is not None:
            alarm = asyncio.get_running_loop().call_later(timeout_s, queue.put_nowait, None)
        try:
            for submission in submissions:
                request_id = submission.request.id
                if request_id in self._queues:
                    raise ValueError(f"request id {request_id!r} is in use; give each request its own")
                self._queues[request_id] = queue
                open_ids.add(request_id)
                self._thread.submit(submission)
            while open_ids:
                delta = await queue.get()
                if delta is None:
                    raise TimeoutError(f"the request did not end within {timeout_s:g} s")
                if delta.last:
                    open_ids.discard(delta.request_id)
                    del self._queues[delta.request_id]
                yield delta
        finally:
            if alarm is not None:
                alarm.cancel()
            for request_id in open_ids:
                del self._queues[request_id]
                self._thread.abort(request_id)

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, before the next step."""
        self._thread.run_between_steps(self._engine.reset_prefix_cache)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is under way; returns False when that takes longer than `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._queues or self._thread.num_under_way:
                    await asyncio.sleep(_DRAIN_POLL_S)
                return True
        return False

    async def stop(self) -> None:
        """End the thread and the pool; unfinished requests end with the step under way."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.stop, _STOP_LIMIT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, deltas: Sequence[SequenceDelta]) -> None:
        """Hand a step's deltas to the event loop (engine's thread)."""
        if self._observe is not None:
            self._observe(deltas)
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to read them
            self._loop.call_soon_threadsafe(self._route, deltas)

    def _route(self, deltas: Sequence[SequenceDelta]) -> None:
        """Put each delta into its request's queue (event loop)."""
        for delta in deltas:
            queue = self._queues.get(delta.request_id)
            if queue is not None:
                queue.put_nowait(delta)
