"""A toy model with a real KV store, whose output betrays any mistake of the control plane.

The entry of a token is a hash of every entry before it, read from the blocks that the plan's table names,
and of the token. A wrong table, a missed copy, a stale block or a wrong position changes every later token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mansard.core.block_manager import BlockManager
from mansard.core.clock import VirtualClock
from mansard.core.config import SchedulerConfig
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import (
    FinishReason,
    Request,
    ScheduledSequence,
    SequenceOutput,
    SequenceResult,
    SequenceStatus,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

VOCAB = 61
EOS = 0


def entry(before: Iterable[int], token_id: int) -> int:
    """The KV entry of a token behind the entries `before`."""
    return hash((tuple(before), token_id))


def choose(state: int, request: Request, index: int) -> int:
    """Greedy, or 'random' by seed, sequence index and position (the state stands for the position)."""
    params = request.params
    if params.temperature == 0:
        return state % VOCAB
    seed = params.seed if params.seed is not None else request.default_seed
    return hash((state, seed, index)) % VOCAB


class ToyExecutor:
    """Executes plans on a dict of slots; `before_step` may raise or return errors by sequence id."""

    def __init__(self, block_size: int, clock: VirtualClock, step_s: float = 1.0) -> None:
        self.block_size = block_size
        self.clock = clock
        self.step_s = step_s
        self.slots: dict[tuple[int, int], int] = {}
        self.plans: list[StepPlan] = []
        self.before_step: Callable[[StepPlan], dict[str, str]] = lambda plan: {}

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        errors = self.before_step(plan)
        self._copy(plan)
        writes: dict[tuple[int, int], int] = {}
        answers = []
        for scheduled in plan.sequences:
            states = self._compute(scheduled, writes)
            error = errors.get(scheduled.sequence_id)
            answers.append(SequenceResult(error=error) if error else self._answer(scheduled, states))
        self.slots.update(writes)  # only now: no sequence may count on what another writes in the same step
        self.clock.advance(self.step_s)
        return StepResult(tuple(answers), self.step_s)

    def _copy(self, plan: StepPlan) -> None:
        sources = [source for source, _ in plan.block_copies]
        targets = [target for _, target in plan.block_copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not set(sources) & set(targets), "copies depend on their order"
        for source, target in plan.block_copies:
            for offset in range(self.block_size):
                self.slots.pop((target, offset), None)
                if (source, offset) in self.slots:
                    self.slots[target, offset] = self.slots[source, offset]

    def _compute(self, scheduled: ScheduledSequence, writes: dict[tuple[int, int], int]) -> list[int]:
        slot = lambda position: (scheduled.block_ids[position // self.block_size], position % self.block_size)
        states = [self.slots[slot(position)] for position in range(scheduled.start)]
        for position, token_id in enumerate(scheduled.token_ids, scheduled.start):
            states.append(entry(states, token_id))
            assert slot(position) not in writes, "two tokens in one slot"
            writes[slot(position)] = states[-1]
        return states

    def _answer(self, scheduled: ScheduledSequence, states: list[int]) -> SequenceResult:
        sampled: list[int] = []
        first = len(states) - scheduled.num_logits
        drafts = scheduled.token_ids[len(scheduled.token_ids) - scheduled.num_draft_tokens :]
        for position in range(first, len(states)):
            sampled.append(choose(states[position], scheduled.request, scheduled.index))
            accepted = position - first < len(drafts) and drafts[position - first] == sampled[-1]
            if not accepted:
                break
        return SequenceResult(tuple(sampled), prompt_logprobs=self._prompt_logprobs(scheduled, states))

    def _prompt_logprobs(self, scheduled: ScheduledSequence, states: list[int]) -> tuple[TokenLogprobs, ...]:
        prompt = scheduled.request.prompt_token_ids
        if scheduled.request.params.prompt_logprobs is None:
            return ()
        return tuple(
            TokenLogprobs(prompt[position + 1], prompt_logprob(states[position]), 1)
            for position in range(scheduled.start, min(len(states), len(prompt) - 1))
        )


def prompt_logprob(state: int) -> float:
    return -(state % 997) / 100


def expected_output(request: Request, index: int, max_length: int) -> tuple[list[int], FinishReason]:
    """What a sequence must answer whatever happens around it: the model run alone, without blocks."""
    params, tokens, states = request.params, list(request.prompt_token_ids), []
    for token_id in tokens:
        states.append(entry(states, token_id))
    output: list[int] = []
    limit = max_length if params.max_tokens is None else min(max_length, len(tokens) + params.max_tokens)
    while len(tokens) + len(output) < limit:
        token_id = choose(states[-1], request, index)
        output.append(token_id)
        states.append(entry(states, token_id))
        ends = (token_id == EOS and not params.ignore_eos) or token_id in params.stop_token_ids
        if ends and len(output) > params.min_tokens:
            return output, FinishReason.STOP
    return output, FinishReason.LENGTH


class World:
    """An engine over the toy model that checks the laws after every step."""

    def __init__(self, config: SchedulerConfig, num_blocks: int, block_size: int = 4, **options) -> None:
        self.clock = VirtualClock()
        self.executor = ToyExecutor(block_size, self.clock)
        self.blocks = BlockManager(num_blocks, block_size, config.enable_prefix_caching)
        self.scheduler = Scheduler(config, self.blocks)
        self.engine = Engine(self.executor, self.scheduler, self.clock, [EOS], VOCAB, **options)
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.errors: dict[str, str] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.engine.add(request)
            self.requests[request.id] = request

    def step(self) -> list[SequenceOutput]:
        num_plans = len(self.executor.plans)
        outputs = self.engine.step()
        self.record(outputs)
        check_laws(self.scheduler)
        for plan in self.executor.plans[num_plans:]:
            assert 0 < plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
            assert len(plan.sequences) <= self.scheduler.config.max_num_seqs
        return outputs

    def record(self, outputs: Iterable[SequenceOutput]) -> None:
        for output in outputs:
            assert output.sequence_id not in self.ends, "an output after the end"
            self.tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
            self.logprobs.setdefault(output.sequence_id, []).extend(p.logprob for p in output.prompt_logprobs)
            if output.finish_reason is not None:
                self.ends[output.sequence_id] = output.finish_reason
                self.errors[output.sequence_id] = output.error or ""

    def run(self, max_steps: int = 20_000) -> World:
        for _ in range(max_steps):
            if not self.engine.has_unfinished():
                break
            wakeup = self.engine.next_wakeup()
            assert wakeup is not None, "work, but nothing would ever wake the engine"
            self.clock.advance_to(wakeup)
            num_plans = len(self.executor.plans)
            self.step()
            assert len(self.executor.plans) > num_plans, "idle with a non-empty queue"
        assert not self.engine.has_unfinished(), "requests left behind"
        assert self.blocks.num_free_blocks == self.blocks.num_blocks
        assert self.expected_ids() == set(self.ends)
        return self

    def expected_ids(self) -> set[str]:
        return {f"{r.id}/{i}" for r in self.requests.values() for i in range(r.params.n)}

    def check_outputs(self) -> None:
        """Every sequence that ended by itself answered exactly what it answers alone."""
        for request in self.requests.values():
            for index in range(request.params.n):
                reason = self.ends[f"{request.id}/{index}"]
                tokens, expected_reason = expected_output(request, index, self.scheduler.max_length)
                got = self.tokens.get(f"{request.id}/{index}", [])
                if reason in (FinishReason.ABORT, FinishReason.ERROR):
                    assert got == tokens[: len(got)]
                else:
                    assert (got, reason) == (tokens, expected_reason)


def check_laws(scheduler: Scheduler) -> None:
    """Blocks conserved, counts match tables, computed ≤ known, running sorted, waiting holds nothing."""
    blocks, running = scheduler.blocks, scheduler.running
    counts = [0] * blocks.num_blocks
    for sequence in running:
        assert sequence.status is SequenceStatus.RUNNING
        assert 0 <= sequence.num_computed_tokens <= len(sequence.token_ids) <= sequence.max_length
        assert len(sequence.block_ids) >= blocks.blocks_for(sequence.num_computed_tokens)
        assert sequence.block_table is None or list(sequence.block_table) == sequence.block_ids
        for block_id in sequence.block_ids:
            counts[block_id] += 1
    assert counts == [blocks.ref_count(block_id) for block_id in range(blocks.num_blocks)]
    assert blocks.num_used_blocks == sum(count > 0 for count in counts)
    assert blocks.num_used_blocks + blocks.num_free_blocks == blocks.num_blocks
    blocks.check()
    ranks = [sequence.rank for sequence in running]
    assert ranks == sorted(set(ranks))
    waiting = [s for s in scheduler._sequences.values() if s.status is SequenceStatus.WAITING]
    assert all(not s.block_ids and s.num_computed_tokens == 0 for s in waiting)
