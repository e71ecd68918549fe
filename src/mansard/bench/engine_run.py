"""One batch through the engine in this process, with the time of each of its steps and of each part of a step.

The engine, scheduler and kernels are the server's; only the wire is missing. Requests are recorded as the HTTP client
records them, so that the same metrics apply.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mansard.bench.records import Chunk, RequestRecord
from mansard.core.types import SamplingParams, StepPlan, StepResult
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.sampler import Sampler
from mansard.runtime.text_engine import TextEngine


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One step: what it computed and how long its parts took. Units: seconds.

    compute_s: the kernels; sample_s: choosing tokens; host_s: the rest of the step (scheduling, text, bookkeeping);
    op_seconds: each op of the program in order, where they were asked for. sequences: (name, start, tokens, logits).
    """

    num_decodes: int
    num_prompt_tokens: int
    num_context_tokens: int  # keys that all its sequences attend to
    compute_s: float
    sample_s: float
    host_s: float = 0.0
    op_seconds: tuple[float, ...] = ()
    start_s: float = 0.0
    sequences: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def time_s(self) -> float:
        """Return the whole step."""
        return self.compute_s + self.sample_s + self.host_s

    @property
    def only_decodes(self) -> bool:
        """Say whether it computed no prompt tokens."""
        return self.num_prompt_tokens == 0


@dataclass
class TimedExecutor:
    """An executor that notes how long computing and sampling took; see `Executor`."""

    inner: Any  # computes logits: NativeExecutor
    sampler: Sampler
    profiles: bool = False
    steps: list[StepTiming] = field(default_factory=list)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run `plan` and sample."""
        if self.profiles:
            self.inner.profile(True)  # from zero
        start = time.perf_counter()
        logits, offsets = self.inner.compute(plan)
        computed = time.perf_counter()
        results = self.sampler.sample(plan, logits, offsets)
        ended = time.perf_counter()
        decodes = [s for s in plan.sequences if s.start >= len(s.request.prompt_token_ids)]
        num_prompt = plan.num_tokens - sum(len(s.token_ids) for s in decodes)
        context = sum(s.start + len(s.token_ids) for s in plan.sequences)
        ops = tuple(self.inner.op_seconds) if self.profiles else ()
        times = (computed - start, ended - computed)
        seqs = tuple((s.sequence_id, s.start, len(s.token_ids), s.num_logits) for s in plan.sequences)
        timing = StepTiming(len(decodes), num_prompt, context, *times, op_seconds=ops, start_s=start, sequences=seqs)
        self.steps.append(timing)
        return StepResult(tuple(results), ended - start)


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What one batch did: its requests, its steps in order and the whole time."""

    records: tuple[RequestRecord, ...]
    steps: tuple[StepTiming, ...]
    duration_s: float

    @property
    def decode_steps(self) -> list[StepTiming]:
        """Return the steps that only decoded, at the largest batch that occurred."""
        decoding = [s for s in self.steps if s.only_decodes]
        most = max((s.num_decodes for s in decoding), default=0)
        return [s for s in decoding if s.num_decodes == most]

    @property
    def prefill_steps(self) -> list[StepTiming]:
        """Return the steps that computed prompt tokens."""
        return [s for s in self.steps if s.num_prompt_tokens]


def run_batch(
    model: LoadedModel, options: EngineOptions, batch_size: int, num_prompt: int, num_output: int, nonce: int,
    *, profiles: bool = False,
) -> EngineRun:  # fmt: skip
    """Run `batch_size` requests of these lengths, all added at once; their prompts are random ids of this nonce.

    profiles: note each op's time too, which costs a little of its own.
    Raises: ValueError when a request cannot fit.
    """
    timed = TimedExecutor(model.executor, Sampler(model.spec.vocab_size, model.eos_token_ids), profiles)
    engine = TextEngine(replace(model, executor=timed), options)
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    prompts = random_prompts(model, batch_size, num_prompt, nonce)
    start = engine.now()
    indexes = {}
    for i, prompt in enumerate(prompts):
        submission = engine.prompts.completion(prompt, params)
        engine.add(submission)
        indexes[submission.request.id] = i
    deltas: list[list[SequenceDelta]] = [[] for _ in prompts]
    while engine.has_work:
        began = time.perf_counter()
        count = len(timed.steps)
        for delta in engine.step():
            deltas[indexes[delta.request_id]].append(delta)
        if len(timed.steps) > count:
            step = timed.steps[-1]
            rest = time.perf_counter() - began - step.compute_s - step.sample_s
            timed.steps[-1] = replace(step, host_s=max(0.0, rest))
    if profiles:
        timed.inner.profile(False)
    records = tuple(_record(i, start, num_prompt, num_output, found) for i, found in enumerate(deltas))
    return EngineRun(records, tuple(timed.steps), engine.now() - start)


def random_prompts(model: LoadedModel, count: int, num_tokens: int, nonce: int) -> list[list[int]]:
    """Return prompts of random ordinary tokens, distinct from the first on with near certainty."""
    random = np.random.default_rng([nonce, count, num_tokens])
    special = model.tokenizer.special_token_ids
    usable = np.array([i for i in range(model.tokenizer.vocab_size) if i not in special])
    return [[int(t) for t in random.choice(usable, num_tokens)] for _ in range(count)]


def _record(
    index: int, start_s: float, num_prompt: int, num_output: int, deltas: Sequence[SequenceDelta]
) -> RequestRecord:
    last = deltas[-1]
    return RequestRecord(
        index=index,
        scheduled_s=start_s,
        sent_s=start_s,
        chunks=tuple(Chunk(d.time_s, len(d.token_ids), len(d.text.encode())) for d in deltas if d.token_ids),
        closed_s=last.time_s,
        num_prompt_tokens=num_prompt,
        num_cached_tokens=last.num_cached_tokens,
        num_output_tokens=last.num_output_tokens,
        finish_reason=str(last.finish_reason),
        error=last.error,
        target_prompt_tokens=num_prompt,
        target_output_tokens=num_output,
    )
