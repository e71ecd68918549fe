"""The reference ops against their formulas and, where torch has the same, against torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mansard.runtime import reference_ops as ops
from mansard.specs.model import Activation

HEADS = arrays(np.float32, (3, 2, 8), elements=st.floats(-1e4, 1e4, width=32))


@given(HEADS, st.sampled_from([8, 4]))
def test_quantized_kv_is_within_half_a_step(x: np.ndarray, bits: int) -> None:
    """Half a step, and a few float32 roundings of it."""
    codes, scale, low = ops.quantize_kv(x, bits)
    assert (codes.min() >= 0 and codes.max() <= 15) if bits == 4 else np.abs(codes).max() <= 127
    rounding = 4e-7 * np.abs(x).max()  # of the sum with the minimum
    assert np.all(np.abs(ops.dequantize_kv(codes, scale, low) - x) <= scale[..., None] * 0.5001 + rounding + 1e-30)


@given(HEADS)
def test_the_largest_value_of_a_head_is_kept(x: np.ndarray) -> None:
    """Its code is the limit, so that it comes back to a float32 rounding."""
    largest = np.abs(x).max(axis=-1)
    back = np.abs(ops.dequantize_kv(*ops.quantize_kv(x, 8))).max(axis=-1)
    np.testing.assert_allclose(back, largest, rtol=1e-6, atol=1e-30)


@settings(deadline=None)
@given(arrays(np.float32, 64, elements=st.floats(-(2.0**127), 2.0**127, width=32)))
def test_round_bf16_equals_torch(x: np.ndarray) -> None:
    import torch

    expected = torch.from_numpy(x.copy()).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(ops.round_bf16(x), expected)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
def test_activations_equal_torch(name: Activation) -> None:
    """A few float32 roundings of values up to 100."""
    import torch
    from torch.nn import functional

    x = np.linspace(-100, 100, 4001, dtype=np.float32)
    expected = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
        "relu": functional.relu,
        "relu2": lambda t: functional.relu(t) ** 2,
    }[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ops.activate(x, name), expected, rtol=1e-5, atol=1e-6)


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 8), np.float32)
    frequencies = np.array([1.0, 0.3, 0.01], np.float32)  # two of the eight dimensions are not rotated

    def product(p: int, r: int) -> float:
        a = ops.rotate(q, np.array([p]), frequencies, 1.0)
        b = ops.rotate(k, np.array([r]), frequencies, 1.0)
        assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(q), rel=1e-5)
        np.testing.assert_array_equal(a[..., 6:], q[..., 6:])
        return float(np.sum(a * b))

    assert product(3, 1) == pytest.approx(product(1002, 1000), abs=1e-4)
    assert product(3, 1) != pytest.approx(product(4, 1), abs=1e-2)


def test_visible_is_causal_windowed_and_chunked() -> None:
    p = np.arange(6)
    assert ops.visible(p, p, None, None).tolist() == np.tril(np.ones((6, 6), bool)).tolist()
    assert ops.visible(p[5:], p, 2, None)[0].tolist() == [False] * 4 + [True] * 2
    assert ops.visible(p[4:5], p, None, 4)[0].tolist() == [False] * 4 + [True, False]


def test_sinks_take_probability_and_add_no_value() -> None:
    q = np.zeros((1, 1, 2), np.float32)
    v = np.ones((3, 1, 2), np.float32)
    mask = np.ones((1, 3), bool)
    out = ops.attention(q, v, v, mask, 1.0, sinks=np.zeros(1, np.float32))
    np.testing.assert_allclose(out, np.full((1, 1, 2), 0.75), rtol=1e-6)  # three scores of 0 against one sink of 0
