"""SimulatedExecutor: makes time pass by moving a virtual clock by what the cost model says a step takes.

It answers with the planned tokens of the workload, and with EOS where nature would have stopped. The engine learns of
that through its ordinary stop check; the scheduler knows `max_tokens` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.clock import VirtualClock
from mansard.core.types import ScheduledSequence, SequenceResult, StepPlan, StepResult
from mansard.sim.planned import EOS, PlannedRequest
from mansard.sim.pricing import Chunk, StepPricer

_NOTHING = SequenceResult()
_END = SequenceResult((EOS,))


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the last step computed: how many decodes, their keys together, and how many tokens of prompts."""

    num_decodes: int
    num_context_tokens: int
    num_prefill_tokens: int


class _Script:
    """What a request will answer: the same token until its last, which is EOS."""

    __slots__ = ("answer", "length", "token_id")

    def __init__(self, planned: PlannedRequest) -> None:
        self.token_id = planned.output_token_id
        self.length = planned.num_prompt_tokens + planned.num_output_tokens  # known tokens at its end
        self.answer = SequenceResult((planned.output_token_id,))


class SimulatedExecutor:
    """Executes plans on paper. `begin` says what a request will answer, before its first step."""

    def __init__(self, pricer: StepPricer, clock: VirtualClock) -> None:
        self.pricer = pricer
        self.clock = clock
        self.last_work = StepWork(0, 0, 0)
        self.num_steps = 0
        self._scripts: dict[str, _Script] = {}
        self._imported: set[str] = set()  # requests whose prompt's KV comes from elsewhere

    def begin(self, planned: PlannedRequest, imported: bool = False) -> None:
        """Take in what `planned` will answer. imported: its prompt's KV was computed and sent by another replica."""
        self._scripts[planned.id] = _Script(planned)
        if imported:
            self._imported.add(planned.id)

    def end(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._scripts.pop(request_id, None)
        self._imported.discard(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        """Move the clock by the step's price and answer with planned tokens."""
        contexts: list[int] = []
        chunks: list[Chunk] = []
        answers: list[SequenceResult] = []
        scripts = self._scripts
        for scheduled in plan.sequences:
            num_tokens = len(scheduled.token_ids)
            if num_tokens == 1:
                contexts.append(scheduled.start + 1)
            elif self._imported and scheduled.request.id in self._imported:
                self._import(scheduled, contexts)
            else:
                chunks.append((num_tokens, scheduled.start))
            if scheduled.num_logits == 0:
                answers.append(_NOTHING)
                continue
            script = scripts[scheduled.request.id]
            is_last = len(scheduled.history) + 1 >= script.length
            answers.append(_END if is_last else script.answer)
        self.num_steps += 1
        self.last_work = StepWork(len(contexts), sum(contexts), sum(n for n, _ in chunks))
        elapsed_s = self.pricer.step_s(contexts, chunks)
        self.clock.advance(elapsed_s)
        return StepResult(tuple(answers), elapsed_s)

    def num_tokens_left(self, request_id: str, num_known: int) -> int:
        """Return how many tokens a request will still answer."""
        return self._scripts[request_id].length - num_known

    def next_tokens(self, request_id: str, num_known: int, count: int) -> list[int]:
        """Return a request's next `count` planned tokens."""
        script = self._scripts[request_id]
        tokens = [script.token_id] * count
        if num_known + count >= script.length:
            tokens[-1] = EOS
        return tokens

    def _import(self, scheduled: ScheduledSequence, contexts: list[int]) -> None:
        """Price a prompt whose KV is there already: nothing but its last token is computed, and only once."""
        if scheduled.num_logits:
            contexts.append(scheduled.start + len(scheduled.token_ids))
            self._imported.discard(scheduled.request.id)
