"""Skipping quiet steps leaves the engine as if it had stepped: same ends at the same step, same counters."""

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from toy_executor import EOS, check_laws
from toy_workloads import configs, requests

from mansard.core.block_manager import BlockManager
from mansard.core.clock import VirtualClock
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import SequenceResult, StepResult


def planned_token(sequence_id: str, position: int, length: int) -> int:
    """Unique ids, and EOS where the plan for the sequence says so."""
    return EOS if position + 1 == length else 1000 + hash((int(sequence_id[1:].replace("/", "0")), position))


class PlannedExecutor:
    """Answers without computing, as a simulation does."""

    def __init__(self, lengths: dict[str, int]) -> None:
        self.lengths = lengths

    def execute(self, plan):
        return StepResult(tuple(self._answer(s) for s in plan.sequences), 1.0)

    def _answer(self, scheduled):
        if scheduled.num_logits == 0:
            return SequenceResult()
        position = len(scheduled.history)
        return SequenceResult((planned_token(scheduled.sequence_id, position, self.lengths[scheduled.request.id]),))


class Run:
    """One engine, stepped or skipping, with what happened at which step."""

    def __init__(self, config, num_blocks, arrivals, gaps, lengths, skips: bool) -> None:
        self.clock, self.lengths, self.skips = VirtualClock(), lengths, skips
        blocks = BlockManager(num_blocks, 4, config.enable_prefix_caching)
        self.engine = Engine(PlannedExecutor(lengths), Scheduler(config, blocks), self.clock, [EOS])
        self.ends, self.num_skipped = {}, 0
        for request, gap in zip(arrivals, gaps, strict=False):
            self.engine.add(request)
            self.go_until(self.clock.now() + gap)
        self.go_until(10_000.0)

    def go_until(self, stop: float) -> None:
        while self.clock.now() < stop and self.engine.has_unfinished():
            self.clock.advance_to(min(stop, self.engine.next_wakeup()))
            if self.clock.now() == stop:
                return
            running = self.engine.scheduler.running
            num_quiet = min(self.engine.num_quiet_steps(outputs_are_new=True), int(stop - self.clock.now()))
            num_quiet = min([num_quiet, *map(self.room, running)])
            if self.skips and num_quiet > 0:
                outputs = self.engine.skip_steps(num_quiet, [self.tokens(s, num_quiet) for s in running])
                self.clock.advance(num_quiet)
                self.num_skipped += num_quiet
            else:
                num_steps = self.engine.stats().num_steps
                outputs = self.engine.step()
                self.clock.advance(self.engine.stats().num_steps - num_steps)
            for output in outputs:
                if output.finish_reason:
                    self.ends[output.sequence_id] = (self.clock.now(), output.finish_reason)
            check_laws(self.engine.scheduler)

    def room(self, sequence) -> int:
        return self.lengths[sequence.request.id] - len(sequence.token_ids)

    def tokens(self, sequence, count: int) -> list[int]:
        known = len(sequence.token_ids)
        length = self.lengths[sequence.request.id]
        return [planned_token(sequence.id, position, length) for position in range(known, known + count)]


@settings(max_examples=80, deadline=None)
@given(
    configs(),
    requests(prompt_logprobs=None, ignore_eos=False, stop_token_ids=()),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.sampled_from([10, 12, 20, 60]),
    st.lists(st.integers(1, 30), min_size=8, max_size=8),
)
def test_skipping_equals_stepping(config, arrivals, gaps, num_blocks, num_outputs):
    lengths = {r.id: len(r.prompt_token_ids) + n for r, n in zip(arrivals, num_outputs, strict=False)}
    arrivals = [replace(request, id=request.id) for request in arrivals]
    stepped = Run(config, num_blocks, arrivals, gaps, lengths, skips=False)
    skipped = Run(config, num_blocks, arrivals, gaps, lengths, skips=True)
    assert skipped.ends == stepped.ends
    assert skipped.engine.stats() == stepped.engine.stats()
    event(f"skipped some steps: {skipped.num_skipped > 0}")
