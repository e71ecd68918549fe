"""The laws of the control plane on the real stack: tiny models, the real scheduler, the native executor.

Logits are a function of the tokens before, bit for bit: whatever was chunked, cached, preempted, forked, drafted or
batched. `Checked` compares every row that any schedule computes with the row of the sequence run alone, whole and
uncached; greedy outputs follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from native_models import BLOCK, QuantizedWeights, TensorWeights, limits, native, part, run, same_bits
from tiny_models import VOCAB_SIZE, tiny_model
from toy_executor import check_laws

from mansard.core.block_manager import BlockManager
from mansard.core.clock import VirtualClock
from mansard.core.config import SchedulerConfig
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import FinishReason, Request, SamplingParams, StepPlan, StepResult
from mansard.core.types import Sequence as Running
from mansard.loading.model_files import locate
from mansard.loading.weights import Weights
from mansard.program.decoder import decoder
from mansard.runtime.executor import NativeExecutor
from mansard.runtime.loader import read_spec
from mansard.runtime.sampler import NOT_FINITE, Sampler

MAX_LEN, NUM_BLOCKS, OUTPUT = 96, 40, 12
# family, KV format, activations, stored weights: each format of each kind appears.
STACKS = (
    ("llama", "f32", "float32", ""),
    ("gemma3", "f16", "int8", "Q8_0"),
    ("qwen3-moe", "int8", "int8", "Q4_1"),
    ("gpt-oss", "int4", "int16", "Q8_0"),
    ("mistral", "bf16", "int8", "Q4_0"),
)
Prefix = tuple[int, ...]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws")


@dataclass
class Model:
    """One stack's executor for all schedules, and another that runs sequences alone."""

    shared: NativeExecutor
    lone: NativeExecutor
    rows: dict[Prefix, np.ndarray] = field(default_factory=dict)
    outputs: dict[Prefix, list[int]] = field(default_factory=dict)

    def row(self, prefix: Prefix) -> np.ndarray:
        """Return the logits after `prefix`, run alone in as few steps as the buffers allow."""
        if prefix not in self.rows:
            blocks = range(-(-len(prefix) // BLOCK))
            got = [
                run(self.lone, StepPlan((part("alone", s, prefix[s : s + 64], blocks),)))
                for s in range(0, len(prefix), 64)
            ]
            for i, row in enumerate(np.concatenate(got)):
                self.rows.setdefault(prefix[: i + 1], row)
        return self.rows[prefix]

    def output(self, prompt: Prefix) -> list[int]:
        """Return the greedy continuation of a prompt, alone."""
        if prompt not in self.outputs:
            tokens = list(prompt)
            for _ in range(OUTPUT):
                tokens.append(int(self.row(tuple(tokens)).argmax()))
            self.outputs[prompt] = tokens[len(prompt) :]
        return self.outputs[prompt]


@cache
def model_of(stack: tuple[str, str, str, str], folder: Path) -> Model:
    family, kv_dtype, activations, fmt = stack
    files = locate(str(tiny_model(family, folder)))
    weights = Weights.open(files.root)
    program = decoder(read_spec(files, weights), max_model_len=MAX_LEN)
    source = QuantizedWeights(weights, fmt) if fmt else weights

    def executor(**changes: Any) -> NativeExecutor:
        given = limits(kv_dtype=kv_dtype, activations=activations, max_model_len=MAX_LEN, **changes)
        return native(program, source, given, VOCAB_SIZE)

    return Model(executor(num_blocks=NUM_BLOCKS), executor(num_blocks=6))


@dataclass
class Checked:
    """An executor that compares every row it computes with the same tokens run alone."""

    model: Model
    sampler: Sampler = field(default_factory=lambda: Sampler(VOCAB_SIZE))
    num_rows: int = 0

    def execute(self, plan: StepPlan) -> StepResult:
        logits, offsets = self.model.shared.compute(plan)
        for s, first in zip(plan.sequences, offsets, strict=False):
            known = (*s.history[: s.start], *s.token_ids)
            for i in range(s.num_logits):
                prefix = known[: len(known) - s.num_logits + 1 + i]
                assert same_bits(logits[first + i], self.model.row(prefix)), (s.sequence_id, len(prefix))
                self.num_rows += 1
        return StepResult(tuple(self.sampler.sample(plan, logits, offsets)), 0.0)


@dataclass
class Oracle:
    """Drafts what the model will say, wrong now and then."""

    model: Model
    wrong_every: int
    length: int = 4

    def propose(self, sequences: Sequence[Running]) -> list[list[int]]:
        return [self._drafts(s) for s in sequences]

    def _drafts(self, sequence: Running) -> list[int]:
        done = sequence.num_output_tokens
        drafts = self.model.output(sequence.request.prompt_token_ids)[done : done + self.length]
        return [d if (done + i) % self.wrong_every else (d + 1) % VOCAB_SIZE for i, d in enumerate(drafts)]


def request(name: str, prompt: Sequence[int], n: int = 1) -> Request:
    return Request(name, tuple(prompt), SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True, n=n))


def serve(
    model: Model, config: SchedulerConfig, num_blocks: int, requests: Sequence[Request], gap: int, **more: Any
) -> Engine:
    """Run requests that arrive `gap` steps apart to their end, and compare the outputs with the requests alone."""
    scheduler = Scheduler(config, BlockManager(num_blocks, BLOCK, config.enable_prefix_caching))
    executor = Checked(model)
    engine = Engine(executor, scheduler, VirtualClock(), (), VOCAB_SIZE, **more)
    tokens: dict[str, list[int]] = {}
    ends: dict[str, FinishReason] = {}
    waiting = list(requests)
    while waiting or engine.has_unfinished():
        if waiting:
            engine.add(waiting.pop(0))
        for _ in range(gap if waiting else 1):
            for output in engine.step():
                assert output.error is None, output.error
                tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    ends[output.sequence_id] = output.finish_reason
            check_laws(scheduler)
    for r in requests:
        for i in range(r.params.n):
            assert tokens[f"{r.id}/{i}"] == model.output(r.prompt_token_ids)
            assert ends[f"{r.id}/{i}"] is FinishReason.LENGTH
    assert executor.num_rows >= OUTPUT
    return engine


BASE = tuple(int(t) for t in np.random.default_rng(3).integers(3, VOCAB_SIZE, MAX_LEN))


@st.composite
def prompts(draw: st.DrawFn) -> Prefix:
    """Draw a prompt that shares a beginning of any length with others."""
    shared = draw(st.sampled_from([0, 1, 15, 16, 17, 32, 40, 63]))
    own = draw(st.integers(1, 20))
    seed = draw(st.integers(0, 2))
    tail = np.random.default_rng(seed).integers(3, VOCAB_SIZE, own)
    return (*BASE[:shared], *(int(t) for t in tail))


@pytest.mark.parametrize("stack", STACKS, ids=lambda s: "-".join(filter(None, s)))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_sequence_answers_as_if_it_were_alone(stack: Any, folder: Path, data: st.DataObject) -> None:
    """Chunked, cached, preempted, forked, drafted or beside others: the same bits."""
    model = model_of(stack, folder)
    batched = data.draw(st.sampled_from([4, 7, 16, 33, 64]))
    config = SchedulerConfig(
        max_num_batched_tokens=batched,
        max_num_seqs=min(batched, data.draw(st.integers(1, 8))),
        max_model_len=MAX_LEN,
        enable_prefix_caching=data.draw(st.booleans()),
        min_decode_share=data.draw(st.sampled_from([0.0, 0.5])),
    )
    given_prompts = data.draw(st.lists(prompts(), min_size=1, max_size=6))
    requests = [request(str(i), p, data.draw(st.sampled_from([1, 1, 3]))) for i, p in enumerate(given_prompts)]
    wrong_every = data.draw(st.sampled_from([0, 1, 2, 5, 1000]))
    more = {"drafter": Oracle(model, wrong_every)} if wrong_every else {}
    num_blocks = data.draw(st.sampled_from([6, 9, 14, NUM_BLOCKS]))
    engine = serve(model, config, num_blocks, requests, data.draw(st.integers(1, 4)), **more)
    stats = engine.stats()
    event(f"preempted: {stats.num_preemptions > 0}")
    event(f"prefix hits: {stats.num_prefix_hit_tokens > 0}")


def config_of(**changes: Any) -> SchedulerConfig:
    defaults = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": MAX_LEN}
    return SchedulerConfig(**{**defaults, **changes})


@pytest.mark.parametrize("stack", STACKS, ids=lambda s: "-".join(filter(None, s)))
def test_each_thing_happens(stack: Any, folder: Path) -> None:
    """Named cases, so that no law holds for want of an instance of it."""
    model = model_of(stack, folder)
    long, twin = request("a", BASE[:70]), request("b", BASE[:70])
    whole = serve(model, config_of(), NUM_BLOCKS, [long], 1)
    chunked = serve(model, config_of(max_num_batched_tokens=8), NUM_BLOCKS, [long], 1)
    assert chunked.stats().num_steps == whole.stats().num_steps + 7
    cached = serve(model, config_of(), NUM_BLOCKS, [long, twin], 4)
    assert cached.stats().num_prefix_hit_tokens == 64
    crowd = [request(str(i), BASE[i : i + 40]) for i in range(4)]
    crowded = serve(model, config_of(), 9, crowd, 1)
    assert crowded.stats().num_preemptions > 0
    drafted = serve(model, config_of(), NUM_BLOCKS, [long], 1, drafter=Oracle(model, 1000))
    assert drafted.stats().num_steps < whole.stats().num_steps - 6
    forked = serve(model, config_of(), NUM_BLOCKS, [request("f", BASE[:20], 3)], 1)
    assert forked.stats().num_computed_tokens < 3 * 20 + 3 * OUTPUT  # the prompt was computed once


class PoisonedWeights:
    """A model's weights with a NaN in the embedding of one token."""

    def __init__(self, weights: Any, token: int) -> None:
        self._weights = weights
        table = weights.float32("model.embed_tokens.weight").copy()
        table[token, 5] = np.nan
        self._table = TensorWeights({"model.embed_tokens.weight": table})

    def _of(self, name: str) -> Any:
        return self._table if name == "model.embed_tokens.weight" else self._weights

    def tensor(self, name: str) -> Any:
        return self._of(name).tensor(name)

    def float32(self, name: str) -> np.ndarray:
        return self._of(name).float32(name)

    def release(self, name: str) -> None:
        """Nothing is mapped."""


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("activations", ["float32", "int16", "int8"])
@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_nan_ends_its_request_alone(family: str, activations: str, kv_dtype: str, folder: Path) -> None:
    """A NaN stays with its request: neighbours answer as ever, and so does whoever gets its blocks next."""
    files = locate(str(tiny_model(family, folder)))
    weights = Weights.open(files.root)
    program = decoder(read_spec(files, weights), max_model_len=MAX_LEN)
    clean = QuantizedWeights(weights, "Q8_0")
    settings = limits(kv_dtype=kv_dtype, activations=activations, max_model_len=MAX_LEN, num_blocks=6)
    lone = native(program, clean, settings, VOCAB_SIZE)
    model = Model(lone, lone)
    good, other = BASE[:30], BASE[30:60]
    said = {*good, *other, *model.output(good), *model.output(other)}
    poison = next(t for t in range(VOCAB_SIZE) if t not in said)
    shared = native(program, PoisonedWeights(clean, poison), settings, VOCAB_SIZE)
    scheduler = Scheduler(config_of(max_num_seqs=2, enable_prefix_caching=False), BlockManager(6, BLOCK, False))
    engine = Engine(shared, scheduler, VirtualClock(), (), VOCAB_SIZE)
    bad = (*good[:20], poison, *good[20:25])
    outputs, errors = {}, {}
    for group in ((("bad", bad), ("beside", good)), (("after", other), ("late", good))):
        for name, prompt in group:
            engine.add(request(name, prompt))
        while engine.has_unfinished():
            for output in engine.step():
                outputs.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    errors[output.request_id] = output.error
    assert errors == {"bad": NOT_FINITE, "beside": None, "after": None, "late": None}
    assert outputs == {
        "bad": [],
        "beside": model.output(good),
        "after": model.output(other),
        "late": model.output(good),
    }
