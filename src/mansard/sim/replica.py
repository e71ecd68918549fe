"""Replica: one engine on a virtual clock, advanced event by event.

Whenever nothing but decoding can happen for some steps, they are taken at once with `Engine.skip_steps`: the engine's
state afterwards, and every time stamp, is exactly that of stepping, because the same prices are added one by one. All
else is an ordinary `Engine.step` of the very engine that serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from mansard.core import types
from mansard.core.block_manager import BlockManager
from mansard.core.clock import VirtualClock
from mansard.core.config import SchedulerConfig
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import FinishReason, SamplingParams, SequenceOutput, SequenceStatus
from mansard.sim.executor import SimulatedExecutor
from mansard.sim.planned import EOS_TOKEN_IDS, PlannedRequest
from mansard.sim.prefix_hash import IntegerPrefixHash
from mansard.sim.pricing import StepPricer
from mansard.sim.timeline import Timeline

ANY_LENGTH = SamplingParams(temperature=0.0, max_tokens=None)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has ended, with what only its replica knows. Units: seconds."""

    planned: PlannedRequest
    sequence: types.Sequence
    first_token_s: float
    end_s: float
    reason: FinishReason


class Replica:
    """One engine with its KV cache. fast: take stretches at once; the results do not depend on it."""

    def __init__(
        self,
        pricer: StepPricer,
        config: SchedulerConfig,
        num_blocks: int,
        block_size: int,
        fast: bool = True,
        params: SamplingParams = ANY_LENGTH,
    ) -> None:
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(pricer, self.clock)
        self.timeline = Timeline()
        blocks = BlockManager(num_blocks, block_size, config.enable_prefix_caching, prefix_hash=IntegerPrefixHash())
        self.engine = Engine(self.executor, Scheduler(config, blocks), self.clock, EOS_TOKEN_IDS)
        self._scheduler, self._blocks = self.engine.scheduler, blocks
        self._fast, self._params = fast, params
        self._planned: dict[str, PlannedRequest] = {}
        self._first_s: dict[str, float] = {}  # request → when its first token came
        self._stalled_s: dict[str, float] = {}  # preempted sequence → when its last token came
        self._num_rounds = 0  # steps in which every running sequence that had a token got one more
        self._end_rounds: list[int] | None = []  # a heap: when each of those ends; None when it must be made anew

    @property
    def num_unfinished(self) -> int:
        """Return how many requests wait or run here."""
        return self._scheduler.num_unfinished

    def next_event_s(self) -> float:
        """Return when the next step begins; infinity when there is nothing to do."""
        wakeup = self.engine.next_wakeup()
        return inf if wakeup is None else wakeup

    def earliest_end_s(self) -> float:
        """Return a time before which no request here can end."""
        running = self._scheduler.running
        if not running or self._scheduler.waiting:
            return self.next_event_s()
        contexts = [s.num_computed_tokens + 1 for s in running]
        if any(len(s.token_ids) != c for s, c in zip(running, contexts, strict=True)):
            return self.clock.now()
        step_s = self.executor.pricer.step_s(contexts, ())
        if not self._all_have_tokens():
            return self.clock.now()
        return self.clock.now() + (1.0 - 1e-9) * step_s * self._num_steps_to_end()

    def add(self, planned: PlannedRequest, now: float, imported: bool = False) -> None:
        """Queue a request at `now`, or at the end of the step under way.

        Raises: ValueError when it can never fit.
        """
        self.clock.advance_to(now)
        request = planned.request(self._params)
        num_tokens, scheduler = len(request.prompt_token_ids), self._scheduler
        if num_tokens < scheduler.config.max_model_len and num_tokens < scheduler.max_length:
            scheduler.add(request, self.clock.now())  # valid by construction, and it fits: Engine.add's checks are long
        else:
            self.engine.add(request)
        self._planned[planned.id] = planned
        self.executor.begin(planned, imported)

    def advance(self, limit_s: float) -> list[Ended]:
        """Take one step that begins before `limit_s`, or several of a stretch; returns the requests that ended."""
        wakeup = self.engine.next_wakeup()
        if wakeup is None or wakeup >= limit_s:
            return []
        self.clock.advance_to(wakeup)
        if self._fast and self._scheduler.running and self._all_have_tokens():
            num_steps = self.engine.num_quiet_steps(outputs_are_new=True, at_most=self._num_steps_to_end())
            if num_steps > 0:
                return self._stretch(num_steps, limit_s)
        return self._step()

    def _all_have_tokens(self) -> bool:
        """Say whether each running sequence had a token in the step before; one that waits and had any is stalled."""
        return len(self._first_s) - len(self._stalled_s) == len(self._scheduler.running)

    def _num_steps_to_end(self) -> int:
        """Return after how many decode steps the first running sequence ends; all of them have tokens."""
        if self._end_rounds is None:
            left = self.executor.num_tokens_left
            rounds = [self._num_rounds + left(s.request.id, len(s.token_ids)) for s in self._scheduler.running]
            self._end_rounds = sorted(rounds)
        return self._end_rounds[0] - self._num_rounds

    def _stretch(self, num_steps: int, limit_s: float) -> list[Ended]:
        """Take up to `num_steps` quiet steps, those that begin before `limit_s`."""
        running, scheduler = self._scheduler.running, self._scheduler
        contexts = [len(s.token_ids) for s in running]
        price = self.executor.pricer.decode_prices(contexts)
        start = now = self.clock.now()
        ends = self.timeline.step_ends_s
        num_taken = 0
        while num_taken < num_steps and now < limit_s:
            now += price()
            ends.append(now)
            num_taken += 1
        num_running, num_waiting = len(running), scheduler.num_unfinished - len(running)
        tokens = self.executor.next_tokens
        answers = [tokens(s.request.id, n, num_taken) for s, n in zip(running, contexts, strict=True)]
        outputs = self.engine.skip_steps(num_taken, answers)
        self._num_rounds += num_taken
        self.clock.advance_to(now)
        self.timeline.add(
            start, num_taken, num_running, num_waiting, num_running, num_running, 0, sum(contexts),
            self._blocks.num_used_blocks, 0,
        )  # fmt: skip
        return [self._ended(output) for output in outputs]

    def _step(self) -> list[Ended]:
        """Take one ordinary step of the engine."""
        scheduler, start = self._scheduler, self.clock.now()
        running, num_preempted = list(scheduler.running), scheduler.num_preemptions
        num_steps = self.executor.num_steps
        outputs = self.engine.step()
        now = self.clock.now()
        if num_preempted != scheduler.num_preemptions:
            self._note_stalls(running, start)
        if self.executor.num_steps == num_steps:
            return []  # sequences were only preempted, or the window of a batch is still open
        self._num_rounds += 1
        num_gaps = self._note_tokens(outputs, now)
        ended = [self._ended(o) for o in outputs if o.finish_reason is not None]
        num_running = len(scheduler.running) + len(ended)
        work = self.executor.last_work
        self.timeline.step_ends_s.append(now)
        self.timeline.add(
            start, 1, num_running, scheduler.num_unfinished + len(ended) - num_running, num_gaps, work.num_decodes,
            work.num_prefill_tokens, work.num_context_tokens, self._blocks.num_used_blocks,
            scheduler.num_preemptions - num_preempted,
        )  # fmt: skip
        return ended

    def _note_stalls(self, running: list[types.Sequence], start: float) -> None:
        """Remember since when sequences preempted in this step have had no token."""
        self._end_rounds = None
        for sequence in running:
            if sequence.status is SequenceStatus.WAITING and sequence.num_output_tokens > 0:
                self._stalled_s.setdefault(sequence.id, start)

    def _note_tokens(self, outputs: list[SequenceOutput], now: float) -> int:
        """Note first tokens and gaps across a preemption; returns how many sequences had a token just before."""
        num_gaps, first = 0, self._first_s
        for output in outputs:
            request_id = output.sequence.request.id
            if request_id not in first:
                first[request_id] = now
                if self._end_rounds is not None:
                    left = self.executor.num_tokens_left(request_id, len(output.sequence.token_ids))
                    heappush(self._end_rounds, self._num_rounds + left)
            elif self._stalled_s and output.sequence_id in self._stalled_s:
                self._end_rounds = None
                self.timeline.long_gaps_s.append(now - self._stalled_s.pop(output.sequence_id))
            else:
                num_gaps += 1
        return num_gaps

    def _ended(self, output: SequenceOutput) -> Ended:
        assert output.finish_reason is not None and output.error is None, output.error
        request_id, now = output.request_id, self.clock.now()
        if self._end_rounds is not None and self._end_rounds[0] == self._num_rounds:
            heappop(self._end_rounds)
        else:
            self._end_rounds = None  # it ended before its planned length
        self.executor.end(request_id)
        first_s = self._first_s.pop(request_id, now)
        return Ended(self._planned.pop(request_id), output.sequence, first_s, now, output.finish_reason)
