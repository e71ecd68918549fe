"""Every family's tiny model in the reference against `transformers`, and the laws of the paged cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import FAMILIES, PROMPT, tiny_model, transformers_logits

from mansard.core.types import Request, ScheduledSequence, StepPlan
from mansard.loading.weights import Weights
from mansard.program.decoder import decoder
from mansard.program.ops import LinearAttention, Program
from mansard.runtime.reference import KvFormat, ReferenceExecutor
from mansard.specs.hf_config import from_hf

# Both compute in float32 in another order; logits are of order one, errors of a few float32 epsilons a layer.
TOLERANCE = 1e-4


def load(family: str, tmp_path: Path, max_model_len: int | None = None) -> tuple[Program, Callable]:
    path = tiny_model(family, tmp_path)
    spec = from_hf(json.loads((path / "config.json").read_text()))
    return decoder(spec, max_model_len=max_model_len), Weights.open(path).float32


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    # phi3's context exceeds the trained length; a deployment within that length uses the short list.
    executor = ReferenceExecutor(*load(family, tmp_path, 256 if family == "phi3" else None))
    expected = transformers_logits(family, PROMPT)
    assert np.ptp(expected) > 1.0, "the tiny model's logits are too flat to show anything"
    np.testing.assert_allclose(executor.forward(PROMPT), expected, rtol=0, atol=TOLERANCE)


class Glm4MoeWeights:
    """GLM-4-MoE's weights under canonical names; it cannot be loaded, but its routing is defined."""

    def __init__(self, path: Path) -> None:
        self.weights = Weights.open(path)
        self.tensors = load_file(path / "model.safetensors")

    def __call__(self, name: str) -> np.ndarray:
        if name.endswith("router.correction_bias"):
            name = name.replace("router.correction_bias", "gate.e_score_correction_bias")
            return self.tensors[name]
        if "shared_expert." in name:
            return self.tensors[name.replace("shared_expert.", "shared_experts.")]
        return self.weights.float32(name)


def test_sigmoid_routing_with_groups_and_shared_experts(tmp_path: Path) -> None:
    path = tiny_model("glm4-moe", tmp_path)
    spec = from_hf(json.loads((path / "config.json").read_text()))
    executor = ReferenceExecutor(decoder(spec), Glm4MoeWeights(path))
    expected = transformers_logits("glm4-moe", PROMPT)
    np.testing.assert_allclose(executor.forward(PROMPT), expected, rtol=0, atol=TOLERANCE)


def part(name: str, start: int, tokens: Sequence[int], blocks: Sequence[int], num_logits: int) -> ScheduledSequence:
    return ScheduledSequence(name, start, tuple(tokens), tuple(blocks), num_logits, Request(name, tuple(tokens)))


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "qwen3-moe", "mistral"])
def test_chunked_equals_whole(family: str, tmp_path: Path) -> None:
    """A prompt in three chunks, in scattered blocks, beside another one, gives the logits of the whole."""
    executor = ReferenceExecutor(*load(family, tmp_path), num_blocks=16, block_size=4)
    whole = executor.forward(PROMPT)
    other = executor.forward(PROMPT[::-1])
    blocks, others = (9, 3, 14, 0, 7, 5), (1, 2, 4, 6, 8, 10)
    got = []
    for start, end in ((0, 5), (5, 6), (6, 24)):
        mine = part("a", start, PROMPT[start:end], blocks, end - start)
        beside = part("b", start, PROMPT[::-1][start:end], others, 1)
        first, second = executor.logits(StepPlan((mine, beside)))
        got.append(first)
        np.testing.assert_allclose(second[0], other[end - 1], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.concatenate(got), whole, rtol=0, atol=TOLERANCE)


def test_copied_blocks_continue_like_the_original(tmp_path: Path) -> None:
    executor = ReferenceExecutor(*load("llama", tmp_path), num_blocks=8, block_size=4)
    whole = executor.forward(PROMPT[:7])
    executor.logits(StepPlan((part("a", 0, PROMPT[:6], (4, 5), 0),)))
    step = StepPlan((part("b", 6, PROMPT[6:7], (4, 7), 1),), block_copies=((5, 7),))
    np.testing.assert_allclose(executor.logits(step)[0], whole[6:], rtol=0, atol=TOLERANCE)


def test_a_prompt_being_filled_has_no_logits(tmp_path: Path) -> None:
    executor = ReferenceExecutor(*load("llama", tmp_path))
    assert executor.logits(StepPlan((part("a", 0, PROMPT[:6], (0,), 0),)))[0].shape == (0, 128)


@pytest.mark.parametrize(("kv_format", "error"), [("fp16", 0.01), ("bf16", 0.1), ("int8", 0.1), ("int4", 2.0)])
def test_rounded_caches_stay_near(kv_format: KvFormat, error: float, tmp_path: Path) -> None:
    """Logits span several units; the bound is about ten times the format's step (2⁻¹¹, 2⁻⁹, 1/254, 1/14)."""
    program, weights = load("llama", tmp_path)
    exact = ReferenceExecutor(program, weights).forward(PROMPT)
    rounded = ReferenceExecutor(program, weights, kv_format=kv_format).forward(PROMPT)
    assert 0.0 < np.abs(rounded - exact).max() < error


def test_what_has_no_reference_is_refused() -> None:
    op = LinearAttention("h", "attention", 8, 1, 1, 4, 4, 4, "model.layers.0.linear_attn")
    executor = ReferenceExecutor(Program((op,), (0,), 0), lambda name: np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="LinearAttention can be priced but not run"):
        executor.forward((1,))
    with pytest.raises(ValueError, match="one rank"):
        ReferenceExecutor(Program((), (), 0, tensor_parallel=2), lambda name: np.zeros(1, np.float32))
