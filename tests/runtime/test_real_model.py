"""The real small model: speculation and batching change no greedy token; echoed scores are the forward pass's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from real_server import MODEL, needs_model

from mansard.core import types
from mansard.core.types import SamplingParams
from mansard.runtime.llm import LLM
from mansard.runtime.model import EngineOptions, LoadedModel, load

pytestmark = needs_model
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    yield load(MODEL, EngineOptions(max_model_len=1024, num_blocks=640))


class Guesser:
    """Drafts what the sequence said before in its place, or anything: some right, some wrong, up to three tokens."""

    def __init__(self, expected: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        self._expected = expected
        self._random = random.Random(0)
        self.num_drafts = 0

    def propose(self, sequences: Sequence[types.Sequence]) -> list[list[int]]:
        return [self._guess(sequence) for sequence in sequences]

    def _guess(self, sequence: types.Sequence) -> list[int]:
        output = self._expected[sequence.request.prompt_token_ids]
        start = sequence.num_output_tokens
        room = sequence.max_length - len(sequence.token_ids) - 1
        guess = list(output[start : start + min(3, max(0, room))])
        if guess and self._random.random() < 0.5:
            guess[self._random.randrange(len(guess))] = self._random.randrange(1000)
        self.num_drafts += len(guess)
        return guess


def test_speculation_changes_no_greedy_token_of_200_prompts(model: LoadedModel) -> None:
    draw = random.Random(1)
    prompts = [[draw.randrange(20, 40_000) for _ in range(draw.randrange(3, 7))] for _ in range(200)]
    plain = LLM(model).generate(prompts, GREEDY)
    expected = {tuple(p): o.outputs[0].token_ids for p, o in zip(prompts, plain, strict=True)}
    llm = LLM(model)
    guesser = Guesser(expected)
    llm.engine._engine._drafter = guesser
    drafted = llm.generate(prompts, GREEDY)
    assert [o.outputs[0].token_ids for o in drafted] == [o.outputs[0].token_ids for o in plain]
    assert all(o.metrics.num_output_tokens == 6 for o in drafted)
    steps = [x.engine.stats().num_output_tokens for x in (llm,)]
    assert steps == [1200] and guesser.num_drafts > 300


def test_filters_do_nothing_at_temperature_zero(model: LoadedModel) -> None:
    prompt = "The capital of France is"
    filtered = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, top_p=0.1, top_k=3, min_p=0.5)
    first, second = LLM(model).generate([prompt, prompt], [GREEDY, filtered])
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


def test_echoed_scores_are_those_of_a_direct_forward_pass(model: LoadedModel) -> None:
    """117 tokens, scored twice and by one token at a time; a prefix hit or another chunking changes nothing."""
    draw = random.Random(2)
    prompt = [draw.randrange(20, 40_000) for _ in range(117)]
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    first, again = (LLM(model).generate([prompt], params)[0].prompt_logprobs for _ in "12")
    assert first is not None and first == again and len(first) == 116
    tail = sum(entry.logprob for entry in first[-4:])
    direct = 0.0
    llm = LLM(model)
    for end in range(113, 117):
        only = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, logit_bias={prompt[end]: 100.0})
        (completion,) = llm.generate([prompt[:end]], only)[0].outputs
        assert completion.token_ids == (prompt[end],) and completion.logprobs is not None
        direct += completion.logprobs[0].logprob
    np.testing.assert_allclose(tail, direct, atol=1e-3)  # the case's tolerance
