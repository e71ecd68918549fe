"""Every family's tiny model on the native executor against `transformers`, through safetensors and through GGUF."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import QuantizedWeights, isas, limits, native, part, run, same_bits
from tiny_gguf import ARCHITECTURES, write_tiny_gguf
from tiny_models import FAMILIES, PROMPT, VOCAB_SIZE, num_parameters, tiny_model, transformers_logits

from mansard.core.types import StepPlan
from mansard.loading.model_files import locate
from mansard.loading.weights import Weights
from mansard.program.decoder import decoder
from mansard.runtime.loader import read_spec
from mansard.runtime.reference import ReferenceExecutor
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import num_parameters as counted_parameters

# Both compute in float32 in another order; logits are of order one, errors of a few float32 steps a layer (measured:
# below 1e-5). What is promised is 1e-3.
TOLERANCE = 3e-5
PLAN = StepPlan((part("prompt", 0, PROMPT, (5, 2)),))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def opened(path: Path) -> tuple[ModelSpec, Weights]:
    """Return a model's spec and weights as the loader reads them."""
    files = locate(str(path))
    weights = Weights.open(files.root)
    return read_spec(files, weights), weights


def logits(spec: ModelSpec, weights: Any, **changes: Any) -> np.ndarray:
    """Run the prompt; all contexts are bounded by 256, within which phi3 uses its short factors."""
    program = decoder(spec, max_model_len=256)
    return run(native(program, weights, limits(**changes), VOCAB_SIZE), PLAN)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, folder: Path) -> None:
    spec, weights = opened(tiny_model(family, folder))
    expected = transformers_logits(family, PROMPT)
    for isa in isas():
        np.testing.assert_allclose(logits(spec, weights, isa=isa), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_logits_equal_transformers(family: str, folder: Path) -> None:
    """Gemma's query scale is implied in a GGUF, and the tiny models have another; it alone is put right."""
    path = tiny_model(family, folder)
    spec, weights = opened(write_tiny_gguf(family, path, folder / f"{family}.gguf"))
    if family.startswith("gemma"):
        spec = replace(spec, query_scale=opened(path)[0].query_scale)
    expected = transformers_logits(family, PROMPT)
    np.testing.assert_allclose(logits(spec, weights), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("fmt", ["fp16", "Q8_0", "Q4_1", "mxfp4"])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_quantized_gguf_equals_its_safetensors_twin(family: str, fmt: str, folder: Path) -> None:
    """The same rows rounded in the same way, in another file's order: int8 logits are equal to float32 roundings.

    Only the divisors of Llama 3's rope, a float32 tensor in a GGUF, and Gemma's 1 + weight are rounded once more,
    which can move a value of int8 by one.
    """
    path = tiny_model(family, folder)
    twin_spec, twin = opened(path)
    spec, weights = opened(write_tiny_gguf(family, path, folder / f"{family}-{fmt}.gguf", fmt))
    spec = replace(spec, query_scale=twin_spec.query_scale) if family.startswith("gemma") else spec
    got = logits(spec, weights)
    expected = logits(twin_spec, QuantizedWeights(twin, fmt))
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
    assert weights.format("model.layers.0.self_attn.o_proj.weight").name == fmt or twin_spec.head_dim % 32


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_activations_stay_near(family: str, folder: Path) -> None:
    """Q8_0 weights with int8 activations against the reference in float32 with the same weights.

    A step of int8 is 1/254 of a group's peak, which leaves about 2 % of the logits' spread in each token (measured:
    1.3 to 2.8 % in the median); int16 is 256 times finer. A router may choose another expert at a near-tie, so a few
    tokens of mixtures are farther off.
    """
    spec, weights = opened(tiny_model(family, folder))
    quantized = QuantizedWeights(weights, "Q8_0")
    exact = ReferenceExecutor(decoder(spec, max_model_len=256), quantized.float32).forward(PROMPT)
    errors = (logits(spec, quantized, activations="int8") - exact) / exact.std()
    by_token = np.sort(np.sqrt(np.mean(np.square(errors), axis=1)))
    assert 0 < by_token[len(by_token) // 2] < 0.04
    assert by_token[-4 if spec.moe else -1] < 0.08
    fine = (logits(spec, quantized, activations="int16") - exact) / exact.std()
    assert np.abs(fine).max() < 0.002


@pytest.mark.parametrize("family", FAMILIES)
def test_parameter_count_is_what_is_loaded(family: str, folder: Path) -> None:
    path = tiny_model(family, folder)
    for spec, weights in (opened(path), opened(write_tiny_gguf(family, path, folder / f"{family}-count.gguf"))):
        assert counted_parameters(spec) == weights.num_parameters == num_parameters(family)


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "qwen2-moe"])
def test_threads_do_not_change_a_bit(family: str, folder: Path) -> None:
    spec, weights = opened(tiny_model(family, folder))
    assert same_bits(logits(spec, weights, num_threads=2), logits(spec, weights))
