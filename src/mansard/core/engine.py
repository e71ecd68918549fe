"""Engine: requests in, tokens out, one step at a time.

It joins the scheduler, which decides what a step computes, with an executor, which makes time pass: by
computing, or by moving a virtual clock. The engine has no thread, no text and no tensor; whoever owns it
calls `step` in a loop.

    add ─▶ schedule ─▶ execute ─▶ update ─▶ outputs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mansard.core import stretch, types
from mansard.core.admission import check_request
from mansard.core.scheduler import Scheduler
from mansard.core.types import Clock, Executor, FinishReason, Request, SequenceOutput, StepPlan, StepResult


class Drafter(Protocol):
    """Guesses how sequences go on, for the next step to verify."""

    def propose(self, sequences: Sequence[types.Sequence]) -> Sequence[Sequence[int]]:
        """Return the draft token ids for each sequence, possibly none."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of gauges and of counters since the start."""

    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_blocks: int
    num_prefix_query_tokens: int
    num_prefix_hit_tokens: int
    num_evictions: int
    num_preemptions: int
    num_steps: int
    num_computed_tokens: int  # of all steps, recomputed ones and drafts included
    num_output_tokens: int

    @property
    def kv_cache_usage(self) -> float:
        """Return the share of KV blocks in use, between 0 and 1."""
        return self.num_used_blocks / self.num_blocks


class Engine:
    """Runs requests to their end; each sequence ends exactly once, with a reason.

    eos_token_ids: end a sequence unless it ignores them. vocab_size: bounds token ids; None leaves them
    unchecked (length-only simulations). drafter: proposes tokens to verify (speculative decoding).
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        clock: Clock,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.clock = clock
        self.eos_token_ids = frozenset(eos_token_ids)
        self.vocab_size = vocab_size
        self._drafter = drafter
        self._num_steps = 0
        self._num_computed_tokens = 0
        self._num_output_tokens = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises: ValueError when it is malformed, can never fit, or its id is in use.
        """
        check_request(request, self.scheduler, self.vocab_size)
        self.scheduler.add(request, self.clock.now())

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """End all sequences of a request; returns their last outputs, none when it has ended already."""
        return self.scheduler.abort(request_id)

    def finish(self, sequence_id: str, reason: FinishReason = FinishReason.STOP) -> SequenceOutput | None:
        """End one sequence, as a stop string does; returns its last output, None if it had ended."""
        return self.scheduler.finish(sequence_id, reason)

    def has_unfinished(self) -> bool:
        """Say whether any sequence waits or runs."""
        return self.scheduler.num_unfinished > 0

    def next_wakeup(self) -> float | None:
        """Return when `step` has work: now, at the end of a batch's window, or None for never."""
        return self.scheduler.next_wakeup(self.clock.now())

    def step(self) -> list[SequenceOutput]:
        """Run one step; returns what sequences gained, nothing when no sequence can run now.

        A sequence whose answer is an error ends alone; when the executor raises, all sequences of the step
        end.
        """
        if self._drafter is not None:
            self._draft(self._drafter)
        plan = self.scheduler.schedule(self.clock.now())
        if plan is None:
            return []
        self._num_steps += 1
        self._num_computed_tokens += plan.num_tokens
        try:
            result = self._execute(plan)
        except Exception as error:  # whatever it is, every request gets an answer
            return self.scheduler.fail(plan, f"{type(error).__name__}: {error}")
        outputs = self.scheduler.update(plan, result, self.eos_token_ids)
        self._num_output_tokens += sum(len(output.token_ids) for output in outputs)
        return outputs

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running sequences keep their blocks."""
        self.scheduler.blocks.reset_prefix_cache()

    def num_quiet_steps(self, outputs_are_new: bool = False, at_most: int | None = None) -> int:
        """Return how many next steps, `at_most` so many, decode one token of each running sequence and no more.

        See `stretch.num_quiet_steps` for what it takes.
        """
        if self._drafter is not None:
            return 0
        return stretch.num_quiet_steps(self.scheduler, self.clock.now(), outputs_are_new, at_most)

    def skip_steps(self, num_steps: int, token_ids: Iterable[Sequence[int]]) -> list[SequenceOutput]:
        """Take quiet steps at once, in a simulation; returns the whole output of each sequence that ended.

        token_ids: each running sequence's next tokens, one per step, of which none but the last may end it.
        """
        num_tokens = num_steps * len(self.scheduler.running)
        outputs = stretch.skip(self.scheduler, num_steps, token_ids, self.eos_token_ids)
        self._num_steps += num_steps
        self._num_computed_tokens += num_tokens
        self._num_output_tokens += num_tokens
        return outputs

    def stats(self) -> EngineStats:
        """Return a snapshot of the engine's gauges and counters."""
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_unfinished - len(scheduler.running),
            num_used_blocks=blocks.num_used_blocks,
            num_blocks=blocks.num_blocks,
            num_prefix_query_tokens=blocks.stats.num_query_tokens,
            num_prefix_hit_tokens=blocks.stats.num_hit_tokens,
            num_evictions=blocks.stats.num_evictions,
            num_preemptions=scheduler.num_preemptions,
            num_steps=self._num_steps,
            num_computed_tokens=self._num_computed_tokens,
            num_output_tokens=self._num_output_tokens,
        )

    def _execute(self, plan: StepPlan) -> StepResult:
        """Execute a plan and check that each of its sequences was answered."""
        result = self.executor.execute(plan)
        if len(result.sequences) != len(plan.sequences):
            raise RuntimeError(f"{len(result.sequences)} answers to {len(plan.sequences)} sequences")
        return result

    def _draft(self, drafter: Drafter) -> None:
        """Ask for drafts for each sequence that decodes."""
        decoding = [s for s in self.scheduler.running if len(s.token_ids) - s.num_computed_tokens == 1]
        for sequence, drafts in zip(decoding, drafter.propose(decoding), strict=True):
            sequence.draft_token_ids[:] = drafts
