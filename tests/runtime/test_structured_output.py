"""Masks are a function of structure and tokens: whatever was asked before, in any order, with drafts or without."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import EOS, TURN_END, VOCAB_SIZE, ToyExecutor, toy_model, toy_tokenizer

from mansard.core.types import FinishReason, Request, SamplingParams, ScheduledSequence, StepPlan, Structure
from mansard.runtime.llm import LLM
from mansard.runtime.sampler import Sampler
from mansard.runtime.structured_output import StructuredOutput, StructureError

WORDS = Structure("regex", "(abc|abd|xyz)-[0-9]{2}")
JSON = Structure("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
TEXTS = {WORDS: ["abc-12", "abd-99", "xyz-00"], JSON: ['{"a": 12}', '{\n  "a": -3}']}


def fresh() -> StructuredOutput:
    return StructuredOutput(toy_tokenizer(), VOCAB_SIZE, (EOS, TURN_END))


def allowed(masks: StructuredOutput, structure: Structure, text: str, sequence_id: str = "s") -> np.ndarray:
    return masks.allowed(sequence_id, structure, list(text.encode()))[:VOCAB_SIZE].copy()


def test_the_mask_is_what_may_follow() -> None:
    masks = fresh()
    assert {chr(i) for i in np.flatnonzero(allowed(masks, WORDS, ""))} == {"a", "x"}
    assert {chr(i) for i in np.flatnonzero(allowed(masks, WORDS, "ab"))} == {"c", "d"}
    assert set(np.flatnonzero(allowed(masks, WORDS, "abc-12"))) == {EOS, TURN_END}, "nothing but the end is left"
    with pytest.raises(StructureError, match="left its structure"):
        allowed(masks, WORDS, "aq")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([WORDS, JSON]), st.integers(0, 2), st.integers(0, 12), st.sampled_from("st")))
)
def test_what_was_asked_before_changes_no_mask(asks: list[tuple[Structure, int, int, str]]) -> None:
    """Preemption and drafts make a sequence jump forth and back; an id may even be used for another structure."""
    used = fresh()
    for structure, which, length, sequence_id in asks:
        texts = TEXTS[structure]
        text = texts[which % len(texts)][:length]
        np.testing.assert_array_equal(allowed(used, structure, text, sequence_id), allowed(fresh(), structure, text))


def scheduled(params: SamplingParams, output: bytes, drafts: bytes) -> ScheduledSequence:
    request = Request("r", (97, 98), params)
    known = [97, 98, *output]
    tokens = (known[-1], *drafts)
    return ScheduledSequence("r/0", len(known) - 1, tokens, (0,), 1 + len(drafts), request, 0, known)


def test_drafts_outside_the_structure_are_refused_and_the_rest_is_within() -> None:
    """A row behind a wrong draft is never reached; a row behind a right one sees the draft as said."""
    sampler = Sampler(VOCAB_SIZE, (EOS, TURN_END), fresh())
    params = SamplingParams(temperature=0.0, structure=WORDS)
    for drafts, tokens in ((b"bc-", b"bc-0"), (b"bq-", b"bc"), (b"zzz", b"b")):
        part = scheduled(params, b"a", drafts)
        logits = np.zeros((len(drafts) + 1, VOCAB_SIZE), np.float32)
        logits[:, [ord("c"), ord("0")]] = 1.0
        (result,) = sampler.sample(StepPlan((part,)), logits)
        assert result.error is None and bytes(result.token_ids) == tokens


def test_without_masks_a_structured_request_fails_and_is_never_free() -> None:
    part = scheduled(SamplingParams(temperature=0.0, structure=WORDS), b"", b"")
    (result,) = Sampler(VOCAB_SIZE).sample(StepPlan((part,)), np.zeros((1, VOCAB_SIZE), np.float32))
    assert result.token_ids == () and "cannot constrain" in (result.error or "")


def test_offline_batches_are_constrained_too() -> None:
    llm = LLM(toy_model(ToyExecutor(seed=3)))
    params = [SamplingParams(seed=i, max_tokens=20, structure=WORDS) for i in range(4)]
    for output in llm.generate(["a"] * 4, params):
        assert re.fullmatch(WORDS.text, output.outputs[0].text)
        assert output.outputs[0].finish_reason is FinishReason.STOP


def test_many_structures_are_forgotten_without_harm() -> None:
    masks = fresh()
    for i in range(70):
        assert allowed(masks, Structure("regex", f"a{i}"), "")[97]
    assert len(masks._compiled) == 64
    assert allowed(masks, Structure("regex", "a0"), "a")[ord("0")]
    for i in range(600):
        allowed(masks, WORDS, "", f"s{i}")
    assert len(masks._parsers) == 512


def test_a_model_without_an_end_can_have_no_structure() -> None:
    with pytest.raises(StructureError, match="no end-of-sequence"):
        StructuredOutput(toy_tokenizer(), VOCAB_SIZE, ()).compile(WORDS)
