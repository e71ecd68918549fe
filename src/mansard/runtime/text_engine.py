"""TextEngine: the engine with text around it, for one thread to drive.

The core engine deals in tokens. Here each sequence gets its text stream, which turns tokens into text that is
never taken back and finds stop strings; a stop string ends the sequence in the engine. `LLM` drives a
TextEngine in a loop and the server drives one in a thread, so that what a stop is has one definition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mansard.core.block_manager import BlockManager
from mansard.core.clock import WallClock
from mansard.core.engine import Engine, EngineStats
from mansard.core.scheduler import Scheduler
from mansard.core.types import Clock, FinishReason, Request, SequenceOutput
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.prompts import PromptPreparer, Submission
from mansard.runtime.sequence_text import SequenceText


@dataclass(slots=True)
class _UnderWay:
    """A request's sequences: their texts, and how many have not ended."""

    submission: Submission
    num_unfinished: int
    texts: dict[int, SequenceText] = field(default_factory=dict)


class StepEngine(Protocol):
    """What is driven here: `Engine`, or something around it that watches what comes and goes."""

    @property
    def clock(self) -> Clock:
        """Return the clock."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request."""
        ...

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """End a request's sequences."""
        ...

    def finish(self, sequence_id: str, reason: FinishReason = ...) -> SequenceOutput | None:
        """End one sequence."""
        ...

    def step(self) -> list[SequenceOutput]:
        """Run one step."""
        ...

    def has_unfinished(self) -> bool:
        """Say whether any sequence has not ended."""
        ...

    def next_wakeup(self) -> float | None:
        """Return when `step` has work."""
        ...

    def stats(self) -> EngineStats:
        """Return gauges and counters."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        ...


Wrap = Callable[[Engine], StepEngine]


class TextEngine:
    """Runs requests of one model to their end as text; everything but `prompts` belongs to one thread.

    wrap: puts something around the engine, such as a recorder.
    """

    def __init__(self, model: LoadedModel, options: EngineOptions, wrap: Wrap | None = None) -> None:
        config = options.scheduler_config(model.max_model_len)
        blocks = BlockManager(
            model.num_blocks,
            model.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            fingerprint=model.fingerprint,
        )
        scheduler = Scheduler(config, blocks)
        self.model = model
        self.options = options
        self.prompts = PromptPreparer(model, scheduler, options.seed)
        clock = WallClock(time.perf_counter)
        engine = Engine(model.executor, scheduler, clock, model.eos_token_ids, model.spec.vocab_size)
        self._engine: StepEngine = engine if wrap is None else wrap(engine)
        self._under_way: dict[str, _UnderWay] = {}

    def now(self) -> float:
        """Return the engine's time in seconds."""
        return self._engine.clock.now()

    def stats(self) -> EngineStats:
        """Return gauges and counters; any thread may ask."""
        return self._engine.stats()

    @property
    def has_work(self) -> bool:
        """Say whether any sequence has not ended."""
        return self._engine.has_unfinished()

    def seconds_until_work(self) -> float | None:
        """Return how long until `step` has something to run: 0 for now, None for never."""
        wakeup_s = self._engine.next_wakeup()
        return None if wakeup_s is None else max(0.0, wakeup_s - self.now())

    def add(self, submission: Submission) -> None:
        """Queue a prepared request.

        Raises: ValueError when its id is in use.
        """
        self._engine.add(submission.request)
        self._under_way[submission.request.id] = _UnderWay(submission, submission.request.params.n)

    def abort(self, request_id: str) -> list[SequenceDelta]:
        """End a request's sequences; returns their last deltas, none when it has ended already."""
        return self._deltas(self._engine.abort(request_id))

    def step(self) -> list[SequenceDelta]:
        """Run one step; returns what each sequence gained."""
        return self._deltas(self._engine.step())

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running sequences keep their blocks."""
        self._engine.reset_prefix_cache()

    def _deltas(self, outputs: Sequence[SequenceOutput]) -> list[SequenceDelta]:
        now = self.now()
        return [self._delta(output, now) for output in outputs]

    def _delta(self, output: SequenceOutput, now: float) -> SequenceDelta:
        sequence, request = output.sequence, output.sequence.request
        under_way = self._under_way[request.id]
        text = under_way.texts.get(sequence.index)
        if text is None:
            text = under_way.texts[sequence.index] = SequenceText(self.model.tokenizer, request.params)
        piece = text.push(output)
        if piece.finish_reason is not None:
            if output.finish_reason is None:
                self._engine.finish(sequence.id, piece.finish_reason)
            under_way.num_unfinished -= 1
            if not under_way.num_unfinished:
                del self._under_way[request.id]
        first_s = sequence.first_scheduled_s
        return SequenceDelta(
            request_id=request.id,
            index=sequence.index,
            text=piece.text,
            token_ids=piece.token_ids,
            num_output_tokens=text.num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            time_s=now,
            queued_s=max(0.0, (now if first_s is None else first_s) - request.arrival_s),
            logprobs=output.logprobs[: len(piece.token_ids)],
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            error=output.error,
            last=not under_way.num_unfinished,
        )
