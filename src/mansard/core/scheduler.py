"""Scheduler: which tokens run in this step.

There is no prefill and no decode phase. Every step, each sequence lets `num_computed_tokens` catch up with
its known tokens (and unverified drafts) under one token budget, those that run already first. A prompt longer
than the budget is thereby chunked; a prefix hit starts ahead; a preempted sequence starts over and catches
up; a rejected draft falls behind by itself. Source of the rule: the vLLM v1 scheduler; chunking beside
decodes: Sarathi-Serve (arXiv 2403.02310).

`running` is sorted by rank, so that the sequence to preempt is always the last and never one that this step
has already planned. A sequence is admitted with blocks for all its known tokens: prompts never preempt anyone
midway.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from mansard.core.answers import accept, fault, fresh_prompt_logprobs
from mansard.core.batch_gate import BatchGate
from mansard.core.block_manager import BlockManager
from mansard.core.config import SchedulerConfig
from mansard.core.types import (
    FinishReason,
    Request,
    ScheduledSequence,
    Sequence,
    SequenceOutput,
    SequenceResult,
    SequenceStatus,
    StepPlan,
    StepResult,
)
from mansard.core.waiting_queue import WaitingQueue

_RANK = attrgetter("rank")


@dataclass(slots=True)
class _Budget:
    """Tokens left in the step: those for prompts, and those for drafts beside the sure decodes."""

    prefill: int
    drafts: int


class Scheduler:
    """Plans steps over sequences that wait or run; see `SchedulerConfig` for the limits and policies.

    Raises: ValueError when the configuration and the block manager do not fit.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        if config.enable_prefix_caching != blocks.enable_prefix_caching:
            raise ValueError(
                f"enable_prefix_caching is {config.enable_prefix_caching} in the configuration and "
                f"{blocks.enable_prefix_caching} in the block manager; give both the same"
            )
        self._num_reserved_blocks = blocks.blocks_for(config.max_model_len)
        if config.kv_reservation == "contiguous" and self._num_reserved_blocks > blocks.num_blocks:
            raise ValueError(
                f"max_model_len is {config.max_model_len}, whose contiguous reservation is "
                f"{self._num_reserved_blocks} blocks; the pool has {blocks.num_blocks} "
                "(lower max_model_len or use kv_reservation='paged')"
            )
        self.config = config
        self.blocks = blocks
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.num_preemptions = 0
        # The last token of a sequence needs no KV of its own, hence the + 1.
        self.max_length = min(config.max_model_len, blocks.num_blocks * blocks.block_size + 1)
        self._num_spare_blocks = int(config.watermark * blocks.num_blocks)
        self._sequences: dict[str, Sequence] = {}
        self._requests: dict[str, list[Sequence]] = {}  # request id → its unfinished sequences
        self._siblings: dict[str, list[Sequence]] = {}  # … → those that wait for the first one's prompt
        self._num_added = 0
        self._gate = BatchGate(config)

    # Requests come and go.

    def add(self, request: Request, now: float) -> None:
        """Queue the `params.n` sequences of a request; the caller has checked that it fits.

        Raises: ValueError when a request with this id is still under way.
        """
        if request.id in self._requests:
            raise ValueError(f"request id '{request.id}' is in use by a running request; give each its own")
        sequences = [self._new_sequence(request, index) for index in range(request.params.n)]
        self._requests[request.id] = sequences
        if not self.waiting:
            self._gate.open_window(now)
        shares_prompt = self.config.kv_reservation == "paged"
        for sequence in sequences:
            self._sequences[sequence.id] = sequence
            if sequence.index == 0 or not shares_prompt:
                self.waiting.push(sequence)
        if shares_prompt and len(sequences) > 1:
            self._siblings[request.id] = sequences[1:]

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """End all sequences of a request; an unknown or finished one is no error."""
        sequences = self._requests.get(request_id, [])
        # Last first: siblings that wait for the first one's prompt must not be sent on their own way now.
        return [self._finish(s, FinishReason.ABORT) for s in sequences[::-1]]

    def finish(self, sequence_id: str, reason: FinishReason) -> SequenceOutput | None:
        """End one sequence from outside, as a stop string does; returns None when it has ended already."""
        sequence = self._sequences.get(sequence_id)
        return self._finish(sequence, reason) if sequence else None

    @property
    def num_unfinished(self) -> int:
        """Return how many sequences wait, run, or will be forked."""
        return len(self._sequences)

    def next_wakeup(self, now: float) -> float | None:
        """Return when `schedule` has work if nothing is added: now, a window's end, or None for never."""
        if self.running:
            return now
        if not self.waiting:
            return None
        return self._gate.ready_at(len(self.waiting), now)

    def admits_nobody(self, now: float, hits_stay: bool) -> bool:
        """Say whether no waiting sequence can join before a running one ends.

        hits_stay: nothing that is computed until then becomes a prefix hit or turns out to be known.
        """
        if self._gate.room(len(self.running), len(self.waiting), now) <= 0:
            return True
        if self.config.policy != "continuous" or not (hits_stay or not self.config.enable_prefix_caching):
            return False  # the next step may close the batch; a new hit may make room
        sequence = self.waiting.peek()
        num_blocks = self._num_blocks_to_admit(sequence)
        return not self.blocks.can_allocate(self._match(sequence), num_blocks, self._num_spare_blocks)

    # A step: schedule, execute elsewhere, update.

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None when nothing can run now. `update` or `fail` must answer each plan."""
        budget = self._open_budget()
        planned: list[ScheduledSequence] = []
        if self._plan_running(planned, budget):
            self._plan_waiting(planned, budget, now)
        copies = self.blocks.take_copies()
        return StepPlan(tuple(planned), copies) if planned else None

    def update(self, plan: StepPlan, result: StepResult, eos_token_ids: frozenset[int]) -> list[SequenceOutput]:
        """Take in a step's answers; returns what each sequence gained, in the plan's order.

        A sequence that ended while the step ran is passed over.
        """
        outputs: list[SequenceOutput] = []
        for scheduled, answer in zip(plan.sequences, result.sequences, strict=True):
            sequence = self._sequences.get(scheduled.sequence_id)
            if sequence is None or sequence.token_ids is not scheduled.history:
                continue
            output = self._advance(sequence, scheduled, answer, eos_token_ids)
            if output is not None:
                outputs.append(output)
        return outputs

    def fail(self, plan: StepPlan, error: str) -> list[SequenceOutput]:
        """End all sequences of a plan that could not be executed."""
        failed = StepResult(tuple(SequenceResult(error=error) for _ in plan.sequences), 0.0)
        return self.update(plan, failed, frozenset())

    # Planning.

    def _open_budget(self) -> _Budget:
        """Set a token aside for each running sequence that decodes, and share out the rest."""
        num_decodes = num_drafts = 0
        for sequence in self.running:
            if len(sequence.token_ids) - sequence.num_computed_tokens == 1:
                num_decodes += 1
                num_drafts += len(sequence.draft_token_ids)
        left = self.config.max_num_batched_tokens - num_decodes
        prompts_want_some = bool(self.waiting) or num_decodes < len(self.running)
        num_drafts = min(num_drafts, left // 2 if prompts_want_some else left)
        prefill = left - num_drafts
        if num_decodes:
            prefill = min(prefill, self.config.max_prefill_tokens_beside_decodes)
        return _Budget(prefill, num_drafts)

    def _plan_running(self, planned: list[ScheduledSequence], budget: _Budget) -> bool:
        """Plan the running sequences in rank order; returns whether all kept their blocks."""
        running, extend = self.running, self.blocks.extend
        index = 0
        none_preempted = True
        while index < len(running):
            sequence = running[index]
            start = sequence.num_computed_tokens
            num_tokens = len(sequence.token_ids) - start
            num_drafts = 0
            if num_tokens > 1:
                num_tokens = self._chunk(num_tokens, budget)
                budget.prefill -= num_tokens
            elif sequence.draft_token_ids:
                num_drafts = self._num_drafts(sequence, budget)
                budget.drafts -= num_drafts
            while num_tokens and not extend(sequence, start, start + num_tokens + num_drafts):
                if num_drafts:  # nobody is preempted for tokens that may be rejected
                    num_drafts = 0
                    continue
                none_preempted = False
                if self._preempt_last() is sequence:
                    return False
            if num_tokens:
                planned.append(_plan(sequence, start, num_tokens, num_drafts))
            index += 1
        return none_preempted

    def _plan_waiting(self, planned: list[ScheduledSequence], budget: _Budget, now: float) -> None:
        """Admit waiting sequences in rank order while budget, room and blocks last."""
        waiting, blocks = self.waiting, self.blocks
        room = self._gate.room(len(self.running), len(waiting), now) if waiting else 0
        while room > 0 and waiting and budget.prefill > 0:
            sequence = waiting.peek()
            num_spare = self._num_spare_blocks if self.running else 0
            hits = self._match(sequence) if blocks.num_free_blocks > num_spare else []
            start = len(hits) * blocks.block_size
            num_tokens = self._chunk(len(sequence.token_ids) - start, budget)
            if num_tokens == 0:
                return
            num_blocks = self._num_blocks_to_admit(sequence)
            if not blocks.can_allocate(hits, num_blocks, num_spare):
                self._gate.close()
                return
            blocks.allocate(waiting.pop(), hits, num_blocks)
            self._start(sequence, start, now)
            budget.prefill -= num_tokens
            room -= 1
            self._gate.joined()
            planned.append(_plan(sequence, start, num_tokens, 0))

    def _chunk(self, num_tokens: int, budget: _Budget) -> int:
        """Return how many of `num_tokens` this step computes; 0 when an unchunked prompt has no room."""
        config = self.config
        if not config.enable_chunked_prefill:
            return num_tokens if num_tokens <= budget.prefill else 0
        return min(num_tokens, budget.prefill, config.long_prefill_token_threshold or num_tokens)

    def _num_drafts(self, sequence: Sequence, budget: _Budget) -> int:
        """Drop drafts beyond the budget or the sequence's length; return how many stay."""
        drafts = sequence.draft_token_ids
        del drafts[max(0, min(budget.drafts, sequence.max_length - len(sequence.token_ids) - 1)) :]
        return len(drafts)

    def _match(self, sequence: Sequence) -> list[int]:
        """Find the prefix hits a sequence may use: none when its whole prompt must be scored."""
        return [] if sequence.request.params.prompt_logprobs is not None else self.blocks.match(sequence)

    def _num_blocks_to_admit(self, sequence: Sequence) -> int:
        """Return the blocks a sequence gets when it is admitted."""
        if self.config.kv_reservation == "contiguous":
            return self._num_reserved_blocks
        return self.blocks.blocks_for(len(sequence.token_ids))

    # Moves between waiting, running and finished.

    def _new_sequence(self, request: Request, index: int) -> Sequence:
        sequence = Sequence(request, index, list(request.prompt_token_ids))
        sequence.rank = (request.priority if self.config.enable_priority else 0, self._num_added)
        self._num_added += 1
        max_tokens = request.params.max_tokens
        limit = self.max_length if max_tokens is None else sequence.num_prompt_tokens + max_tokens
        sequence.max_length = min(limit, self.max_length)
        return sequence

    def _start(self, sequence: Sequence, num_hit_tokens: int, now: float) -> None:
        """Let an admitted sequence run from behind its prefix hit."""
        sequence.num_computed_tokens = num_hit_tokens
        if sequence.first_scheduled_s is None:
            sequence.first_scheduled_s = now
            sequence.num_cached_tokens = num_hit_tokens
            self.blocks.stats.num_query_tokens += len(sequence.token_ids)
            self.blocks.stats.num_hit_tokens += num_hit_tokens
        self._run(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        if self.running and sequence.rank < self.running[-1].rank:
            insort(self.running, sequence, key=_RANK)
        else:
            self.running.append(sequence)

    def _preempt_last(self) -> Sequence:
        """Take the last running sequence's blocks; its tokens stay known and are computed again."""
        sequence = self.running.pop()
        self.blocks.free(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._wait(sequence)
        return sequence

    def _wait(self, sequence: Sequence) -> None:
        """Queue a member of the batch under way; it waits for no window."""
        sequence.status = SequenceStatus.WAITING
        self.waiting.push(sequence)
        self._gate.expect()

    def _fork(self, parent: Sequence) -> None:
        """Let siblings share the computed prompt; each recomputes its last token to sample for itself."""
        siblings = self._siblings.pop(parent.request.id)
        for sibling in siblings:
            if len(self.running) >= self.config.max_num_seqs:
                self._wait(sibling)
                continue
            self.blocks.fork(parent, sibling, parent.num_prompt_tokens)
            sibling.num_computed_tokens = parent.num_prompt_tokens - 1
            sibling.num_cached_tokens = parent.num_cached_tokens
            sibling.first_scheduled_s = parent.first_scheduled_s
            self._run(sibling)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> SequenceOutput:
        """End a sequence wherever it is, and give its blocks back."""
        was_running = sequence.status is SequenceStatus.RUNNING
        siblings = self._siblings.get(sequence.request.id, [])
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        if was_running:
            self.running.remove(sequence)
            self.blocks.free(sequence)
        elif sequence in siblings:
            siblings.remove(sequence)
        else:
            self.waiting.discard(sequence)
        if sequence.index == 0:  # it ended before its prompt was computed: the others go their own way
            for sibling in self._siblings.pop(sequence.request.id, ()):
                self._wait(sibling)
        del self._sequences[sequence.id]
        mates = self._requests[sequence.request.id]
        mates.remove(sequence)
        if not mates:
            del self._requests[sequence.request.id]
        return SequenceOutput(sequence, finish_reason=reason, error=error)

    # Taking in answers.

    def _advance(
        self,
        sequence: Sequence,
        scheduled: ScheduledSequence,
        answer: SequenceResult,
        eos_token_ids: frozenset[int],
    ) -> SequenceOutput | None:
        """Move one sequence on by what its step computed and sampled."""
        tokens, num_logits = answer.token_ids, scheduled.num_logits
        is_plain = answer.error is None and len(tokens) == num_logits
        if not is_plain and (error := fault(scheduled, answer)) is not None:
            return self._finish(sequence, FinishReason.ERROR, error)
        reason = None
        if sequence.draft_token_ids:
            sequence.draft_token_ids.clear()
        if num_logits:
            tokens, reason = accept(sequence, tokens, eos_token_ids)
            # The last sampled token has no KV yet; those before it were computed as drafts.
            sequence.num_computed_tokens = len(sequence.token_ids) - 1
        else:
            sequence.num_computed_tokens = scheduled.start + len(scheduled.token_ids)
            if sequence.num_computed_tokens >= sequence.max_length:
                reason = FinishReason.LENGTH  # max_tokens = 0: the prompt alone was asked for
        self._settle_blocks(sequence)
        prompt_logprobs = fresh_prompt_logprobs(sequence, scheduled, answer) if answer.prompt_logprobs else ()
        if reason is not None:
            self._finish(sequence, reason)
        elif not tokens and not prompt_logprobs:
            return None
        return SequenceOutput(sequence, tokens, answer.logprobs[: len(tokens)], prompt_logprobs, reason)

    def _settle_blocks(self, sequence: Sequence) -> None:
        """Share what is computed: full blocks with everyone, a whole prompt with the siblings."""
        num_computed = sequence.num_computed_tokens
        if num_computed >= (sequence.num_registered_blocks + 1) * self.blocks.block_size:
            self.blocks.register(sequence)
        has_siblings = self._siblings and sequence.index == 0 and sequence.request.id in self._siblings
        if has_siblings and num_computed >= sequence.num_prompt_tokens:
            self._fork(sequence)


def _plan(sequence: Sequence, start: int, num_tokens: int, num_drafts: int) -> ScheduledSequence:
    """Describe the computation of known tokens [start, start + num_tokens) and the drafts behind them."""
    known = sequence.token_ids
    end = start + num_tokens
    tokens = (known[start],) if num_tokens == 1 else tuple(known[start:end])
    if num_drafts:
        tokens += tuple(sequence.draft_token_ids[:num_drafts])
    num_logits = 1 + num_drafts if end == len(known) < sequence.max_length else 0
    table = sequence.block_table
    if table is None:
        table = sequence.block_table = tuple(sequence.block_ids)
    request, index = sequence.request, sequence.index
    return ScheduledSequence(sequence.id, start, tokens, table, num_logits, request, index, known)
