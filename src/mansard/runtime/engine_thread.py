"""EngineThread: drives a TextEngine in a thread of its own.

Requests come in and go away through a queue that the thread empties between steps, so the engine itself needs
no lock; while nothing is under way the thread sleeps. Each step's deltas leave in one call. If the engine
itself breaks, every request under way is answered with an error and `health` says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mansard.core.types import FinishReason
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.prompts import Submission
from mansard.runtime.text_engine import TextEngine

logger = logging.getLogger(__name__)

Deliver = Callable[[Sequence[SequenceDelta]], None]
OnStep = Callable[[float], None]
Command = Callable[[], Sequence[SequenceDelta]]

IDLE_WAIT_S = 0.05  # longest sleep while the engine holds requests that no step may run yet


class EngineThread:
    """Runs `engine`'s steps; `deliver` is called in the thread with what each step added.

    stall_after_s: how long one step may take before `health` calls the engine stalled. on_step: called with each
    step's seconds.
    """

    def __init__(
        self, engine: TextEngine, deliver: Deliver, stall_after_s: float = 120.0, on_step: OnStep | None = None
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_step = on_step
        self._stall_after_s = stall_after_s
        self._commands: list[Command] = []
        self._awake = threading.Condition()
        self._stopping = False
        self._failure: str | None = None
        self._busy_since_s: float | None = None  # when the step under way began
        self._under_way: dict[str, int] = {}  # request id → its n, of requests submitted and not ended
        self._thread = threading.Thread(target=self._run, name="mansard-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Queue a request; its deltas go to `deliver`, the last one marked so."""
        self._send(lambda: self._add(submission))

    def abort(self, request_id: str) -> None:
        """End a request before the next step; one that has ended already is no error."""
        self._send(lambda: self._engine.abort(request_id))

    def run_between_steps(self, action: Callable[[], None]) -> None:
        """Run `action` in the thread before the next step."""

        def command() -> Sequence[SequenceDelta]:
            action()
            return ()

        self._send(command)

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread after the step under way, whatever is unfinished; returns whether it did."""
        with self._awake:
            self._stopping = True
            self._awake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def num_under_way(self) -> int:
        """Return how many requests the engine holds."""
        return len(self._under_way)

    def health(self) -> str | None:
        """Return what is wrong with the engine, or None."""
        if self._failure is not None:
            return self._failure
        if not self._thread.is_alive():
            return "the engine is not running"
        since_s = self._busy_since_s
        if since_s is not None and time.monotonic() - since_s > self._stall_after_s:
            return f"the engine has not finished a step for {time.monotonic() - since_s:.0f} s"
        return None

    # In the thread.

    def _send(self, command: Command) -> None:
        with self._awake:
            self._commands.append(command)
            self._awake.notify()

    def _run(self) -> None:
        while not self._stopping:
            commands = self._wait_for_work()
            deltas: list[SequenceDelta] = []
            try:
                for command in commands:
                    deltas.extend(command())
                if self._failure is None and self._engine.has_work:
                    self._busy_since_s = began_s = time.monotonic()
                    deltas.extend(self._engine.step())
                    if self._on_step is not None:
                        self._on_step(time.monotonic() - began_s)
            except Exception as error:
                logger.exception("the engine failed")
                self._failure = f"the engine failed: {type(error).__name__}: {error}"
                deltas.extend(self._end_all(self._failure))
            finally:
                self._busy_since_s = None
            for delta in deltas:
                if delta.last:
                    self._under_way.pop(delta.request_id, None)
            if deltas:
                self._deliver(deltas)
        if self._under_way:
            self._deliver(self._end_all("the engine was stopped"))

    def _wait_for_work(self) -> list[Command]:
        """Sleep until there is a command or a step to run; return the commands."""
        with self._awake:
            while not (self._commands or self._stopping):
                wakeup_s = None if self._failure is not None else self._engine.seconds_until_work()
                if wakeup_s == 0.0:
                    break
                self._awake.wait(wakeup_s)
            commands, self._commands = self._commands, []
        return commands

    def _add(self, submission: Submission) -> Sequence[SequenceDelta]:
        request = submission.request
        if self._failure is not None:
            return _errors(request.id, request.params.n, self._failure)
        try:
            self._engine.add(submission)
        except ValueError as error:
            return _errors(request.id, request.params.n, str(error))
        self._under_way[request.id] = request.params.n
        return ()

    def _end_all(self, error: str) -> list[SequenceDelta]:
        """Answer every request under way with an error."""
        return [d for request_id, n in self._under_way.items() for d in _errors(request_id, n, error)]


def _errors(request_id: str, n: int, error: str) -> list[SequenceDelta]:
    """Return the deltas that end each sequence of a request with an error."""
    return [
        SequenceDelta(
            request_id,
            index,
            text="",
            token_ids=(),
            num_output_tokens=0,
            num_cached_tokens=0,
            time_s=0.0,
            queued_s=0.0,
            finish_reason=FinishReason.ERROR,
            error=error,
            last=index == n - 1,
        )
        for index in range(n)
    ]
