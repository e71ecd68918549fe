"""Rotary frequencies against `transformers`, kind by kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mansard.specs.hf_config import from_hf
from mansard.specs.model import RopeSpec
from mansard.specs.rope import attention_factor, inverse_frequencies, with_frequency_divisors, yarn_mscale

PLANES = [1.0 + 0.1 * i for i in range(24)]
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONG |= {"short_factor": PLANES, "long_factor": [2 * f for f in PLANES]}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn-untruncated": {
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "mscale": 0.8,
        "mscale_all_dim": 1.1,
        "original_max_position_embeddings": 4096,
    },
    "yarn-given-factor": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "attention_factor": 1.7,
        "original_max_position_embeddings": 4096,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies_equal_transformers(case: str) -> None:
    """Theirs are float32 powers, ours double: a few float32 roundings apart."""
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=8, max_position_embeddings=131072, rope_parameters=CASES[case]
    )
    spec = from_hf(config.to_dict())
    got, factor = inverse_frequencies(spec.rope, spec.head_dim, 131072)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[CASES[case]["rope_type"]](config, "cpu")
    assert got == pytest.approx(expected.tolist(), rel=1e-5)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


@pytest.mark.parametrize(("length", "longer"), [(4096, False), (4097, True)])
def test_longrope_has_a_list_for_short_and_one_for_long_deployments(length: int, longer: bool) -> None:
    config = Phi3Config(
        hidden_size=512,
        num_attention_heads=8,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters=dict(LONG),
        pad_token_id=None,
    )
    spec = from_hf(config.to_dict())
    assert spec.rope.rotary_dim == 48
    got, factor = inverse_frequencies(spec.rope, spec.head_dim, length)
    expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
    assert got == pytest.approx(expected.tolist(), rel=1e-5)
    assert factor == pytest.approx(expected_factor) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    short, _ = inverse_frequencies(spec.rope, spec.head_dim, 1)
    assert (got != short) == longer


def test_frequencies_divided_by_a_file_are_llama3s() -> None:
    """A GGUF of Llama 3.1 holds the quotients of the plain frequencies and the stretched ones."""
    llama3 = from_hf(LlamaConfig(rope_parameters=CASES["llama3"], max_position_embeddings=131072).to_dict())
    plain = from_hf(LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 5e5}).to_dict())
    stretched, _ = inverse_frequencies(llama3.rope, 128, 131072)
    base, _ = inverse_frequencies(plain.rope, 128, 131072)
    divided = with_frequency_divisors(plain, [b / s for b, s in zip(base, stretched, strict=True)])
    got, factor = inverse_frequencies(divided.rope, 128, 131072)
    assert got == pytest.approx(stretched) and factor == 1.0


def test_no_rope_rotates_nothing() -> None:
    assert inverse_frequencies(RopeSpec(kind="none"), 64, 100) == ((), 1.0)


@given(st.floats(1.0, 1e3), st.sampled_from(["llama3", "yarn", "linear"]), st.sampled_from([16, 64, 128]))
def test_stretching_never_speeds_a_plane_up(factor: float, kind: Any, dim: int) -> None:
    """Each frequency stays between the plain one and the plain one divided by the factor."""
    rope = RopeSpec(1e4, None, kind, factor, original_max_position_embeddings=2048)
    plain, _ = inverse_frequencies(RopeSpec(), dim, 4096)
    stretched, scale = inverse_frequencies(rope, dim, 4096)
    assert scale >= 1.0
    for before, after in zip(plain, stretched, strict=True):
        assert before / factor * (1 - 1e-9) <= after <= before * (1 + 1e-9)


def test_yarn_temperature() -> None:
    assert yarn_mscale(40.0, 1.0) == pytest.approx(0.1 * math.log(40.0) + 1.0)
    assert yarn_mscale(0.5, 1.0) == attention_factor(RopeSpec(kind="yarn")) == 1.0


def test_a_stretch_needs_the_trained_length() -> None:
    with pytest.raises(ValueError, match="'yarn' needs original_max_position_embeddings"):
        inverse_frequencies(RopeSpec(kind="yarn", factor=2.0), 64, 100)
