"""Every stored format on every kernel set: linear ops and embeddings against NumPy, and their bit identities.

What is lost is derived: formats with one scale a block keep it, so their weights are exact; a product of two-level
scales (K-quants) is rounded to a half, which is a relative 2⁻¹¹ of the scaled code and of the offset. Sums differ from
NumPy's by a float32 rounding for each term. int8 activations are compared with a NumPy model of themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
from native_models import (
    ENCODED,
    K_QUANTS,
    LAYOUTS,
    NATIVE_NAMES,
    STORED,
    Probe,
    StoredTensor,
    isas,
    limits,
    native,
    part,
    rows_plan,
    run,
    same_bits,
    stored,
)

from mansard.core.types import StepPlan
from mansard.loading.ggml_blocks import dequantize
from mansard.program.ops import Embed, Linear, Logits, Program

ROWS, TOKENS = 37, 40  # neither is whole panels of 16 nor whole tiles of 4 or 8
EPSILON = 2.0**-24  # half a float32 step: one rounding
HALF = 2.0**-11  # half a float16 step
DENSE = ("F32", "F16", "BF16")
WITH_OFFSET = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
ACTIVATIONS = ("float32", "int16", "int8")


def columns_of(fmt: str) -> int:
    """Return a width of whole blocks; 96 is three groups of activations, an odd number."""
    return 512 if fmt in K_QUANTS else 96


def weight_of(fmt: str) -> StoredTensor:
    return stored(np.random.default_rng(STORED.index(fmt)), fmt, ROWS, columns_of(fmt))


def inputs(columns: int) -> np.ndarray:
    """Return rows of very different sizes, so that a scale of the wrong row or group shows."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((TOKENS, columns), np.float32) * np.exp(rng.uniform(-3, 3, (TOKENS, 1)))
    x[3, :32] = 0.0  # a group of zeros has no scale
    return x.astype(np.float32)


def magnitudes(weight: StoredTensor) -> np.ndarray:
    """Return |scale · code| + |offset| of every element; the offset is what codes of zero leave."""
    values = dequantize(weight).astype(np.float64)
    if weight.format.name not in WITH_OFFSET:
        return np.abs(values)
    blocks = weight.data.copy().view(LAYOUTS[weight.format.name])
    for codes in ("qs", "qh"):
        if codes in (blocks.dtype.names or ()):
            blocks[codes] = 0
    offset = dequantize(StoredTensor("offset", weight.format, weight.shape, blocks.view(np.uint8)))
    return np.abs(values - offset) + np.abs(offset)


def linear_probe(weight: StoredTensor, bias: np.ndarray | None = None) -> Probe:
    columns = weight.shape[1]
    op = Linear("x", "y", ("weight",), columns, (ROWS,), () if bias is None else ("bias",))
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return Probe((op,), {"x": inputs(columns)}, "y", ROWS, weights)


def looked_up(weight: StoredTensor, isa: str) -> np.ndarray:
    """Return the rows of `weight` as an embedding of the native executor yields them."""
    program = Program((Embed("x", "weight", *weight.shape), Logits("x", "identity", weight.shape[1], 1)), (0, 0), 0)
    source = Probe((), {}, "x", weight.shape[1], {"weight": weight}).source()
    return run(native(program, source, limits(isa=isa), weight.shape[1]), rows_plan(weight.shape[0]))


def int8_rows(x: np.ndarray) -> np.ndarray:
    """Return what rows of activations are after rounding to int8 with a scale for each 32 columns."""
    groups = x.reshape(len(x), -1, 32)
    peak = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    return (np.rint(groups * inverse) * (peak / np.float32(127)).astype(np.float64)).reshape(x.shape)


def half_steps(x: np.ndarray, levels: float) -> np.ndarray:
    """Return half the step of each activation's group: [T, columns]."""
    peak = np.abs(x.reshape(len(x), -1, 32)).max(axis=-1)
    return np.repeat(peak / levels / 2, 32, axis=1)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("fmt", STORED)
def test_embeddings_are_the_stored_values(fmt: str, isa: str) -> None:
    weight = weight_of(fmt)
    got, exact = looked_up(weight, isa), dequantize(weight)
    if fmt in K_QUANTS:
        assert np.all(np.abs(got - exact) <= magnitudes(weight) * (HALF + 2 * EPSILON) + 1e-9)
    elif fmt in WITH_OFFSET:  # a fused multiply-add rounds once where ggml rounds twice
        assert np.all(np.abs(got - exact) <= magnitudes(weight) * 2 * EPSILON)
    else:
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("fmt", STORED)
def test_linear_equals_numpy(fmt: str, isa: str, activations: str) -> None:
    weight = weight_of(fmt)
    bias = np.random.default_rng(1).standard_normal(ROWS).astype(np.float32)
    probe = linear_probe(weight, bias)
    got = run(probe.native(isa=isa, activations=activations), rows_plan(TOKENS))
    x, values, size = probe.inputs["x"], dequantize(weight).astype(np.float64), magnitudes(weight)
    is_exact = activations == "float32" or fmt in DENSE
    terms = x.shape[1] + 8 if is_exact else x.shape[1] // 16 * 3 + 8
    error = np.abs(x) @ size.T * (terms * EPSILON) + np.abs(bias) * EPSILON
    if fmt in K_QUANTS:
        error += np.abs(x) @ size.T * HALF
    if activations == "int8" and not is_exact:
        x = int8_rows(x)
    elif activations == "int16" and not is_exact:
        error += half_steps(x, 127 * 256) @ np.abs(values).T * 1.01
    assert np.all(np.abs(got - (x @ values.T + bias)) <= error)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("fmt", K_QUANTS)
def test_int8_k_quants_lose_nothing_but_the_scales(fmt: str, isa: str) -> None:
    """With the weights as they are held (looked up as an embedding), only float32 roundings remain."""
    weight = weight_of(fmt)
    probe = linear_probe(weight)
    got = run(probe.native(isa=isa, activations="int8"), rows_plan(TOKENS))
    x = int8_rows(probe.inputs["x"])
    expected = x @ looked_up(weight, isa).astype(np.float64).T
    terms = x.shape[1] // 16 * 3 + 8
    assert np.all(np.abs(got - expected) <= np.abs(x) @ magnitudes(weight).T * (terms * EPSILON))


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("fmt", STORED)
def test_a_row_does_not_depend_on_the_rows_beside_it(fmt: str, isa: str, activations: str) -> None:
    executor = linear_probe(weight_of(fmt)).native(isa=isa, activations=activations)
    together = run(executor, rows_plan(TOKENS))
    for count in (1, 2, 3, 6, 13, 31) if isa == "portable" else range(1, TOKENS):
        first = (7 * count) % (TOKENS - count + 1)
        assert same_bits(run(executor, rows_plan(count, first)), together[first : first + count]), count


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("fmt", ["F16", "Q4_1", "Q6_K", "mxfp4"])
def test_a_row_does_not_depend_on_the_number_of_threads(fmt: str, activations: str) -> None:
    probe = linear_probe(weight_of(fmt))
    alone = run(probe.native(activations=activations), rows_plan(TOKENS))
    for num_threads in (2, 3):
        executor = probe.native(activations=activations, num_threads=num_threads)
        assert same_bits(run(executor, rows_plan(TOKENS)), alone)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("fmt", STORED)
def test_kernel_sets_agree(fmt: str, activations: str) -> None:
    """AVX2 and AVX-512 are equal bit for bit; portable code rounds some products twice, a float32 step each."""
    probe = linear_probe(weight_of(fmt))
    got = {isa: run(probe.native(isa=isa, activations=activations), rows_plan(TOKENS)) for isa in isas()}
    if {"avx2", "avx512"} <= got.keys():
        assert same_bits(got["avx2"], got["avx512"])
    size = np.abs(probe.inputs["x"]) @ magnitudes(probe.weights["weight"]).T
    for result in got.values():
        assert np.all(np.abs(result - got["portable"]) <= size * (8 * EPSILON))


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("fmt", ["F32", "Q4_1", "Q8_0", "Q3_K"])
def test_logits_are_of_the_rows_that_sample(fmt: str, activations: str) -> None:
    """Rows are gathered; of three sequences one has no logits at all."""
    weight = weight_of(fmt)
    x = inputs(weight.shape[1])
    program = Program((Embed("x", "table.x", *x.shape), Logits("x", "weight", weight.shape[1], ROWS)), (0, 0), 0)
    source = Probe((), {"x": x}, "x", 1, {"weight": weight}).source()
    executor = native(program, source, limits(activations=activations), ROWS)
    parts = (part("a", 0, range(9), (0,), 2), part("b", 5, (9,), (1,), 0), part("c", 0, range(10, 13), (2,), 3))
    everything = run(executor, rows_plan(TOKENS))
    assert same_bits(run(executor, StepPlan(parts)), everything[[7, 8, 10, 11, 12]])


@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_several_weights_stand_side_by_side(activations: str) -> None:
    """q, k and v of three formats and widths, with biases, added to what the output held."""
    rng = np.random.default_rng(5)
    parts = {n: stored(rng, f, r, 96) for n, f, r in (("q", "Q4_0", 33), ("k", "F16", 5), ("v", "Q8_0", 18))}
    rows = tuple(p.shape[0] for p in parts.values())
    biases = {f"{n}.bias": rng.standard_normal(p.shape[0]).astype(np.float32) for n, p in parts.items()}
    before = rng.standard_normal((TOKENS, sum(rows))).astype(np.float32)
    op = Linear("x", "y", tuple(parts), 96, rows, tuple(biases), add_to_output=True)
    tables = {"x": inputs(96), "y": before}
    got = run(
        Probe((op,), tables, "y", sum(rows), {**parts, **biases}).native(activations=activations), rows_plan(TOKENS)
    )
    at = 0
    for name, weight in parts.items():
        alone = Probe(
            (Linear("x", "y", (name,), 96, (weight.shape[0],)),),
            {"x": inputs(96)},
            "y",
            weight.shape[0],
            {name: weight},
        )
        product = run(alone.native(activations=activations), rows_plan(TOKENS))
        span = slice(at, at + weight.shape[0])
        np.testing.assert_array_equal(got[:, span], before[:, span] + (product + biases[f"{name}.bias"]))
        at = span.stop


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(value: float, isa: str, activations: str) -> None:
    """A value that is not finite, at any place of a group, must not be rounded to a number and forgotten."""
    probe = linear_probe(weight_of("Q8_0"))
    x = probe.inputs["x"]
    for row in range(33):
        x[row, 32 + row % 32] = value
    got = run(probe.native(isa=isa, activations=activations), rows_plan(TOKENS))
    assert not np.isfinite(got[:33]).any()
    assert np.isfinite(got[33:]).all()


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("isa", isas())
def test_extreme_sizes_neither_overflow_nor_vanish(isa: str, activations: str) -> None:
    """Groups of about 1e-30, 1 and 1e30 in one row: each keeps its own scale."""
    weight = weight_of("Q4_0")
    x = np.zeros((3, 96), np.float32)
    for row, size in enumerate((1e-28, 1.0, 1e30)):
        x[row, 32 * row : 32 * row + 32] = np.linspace(-1, 1, 32) * size
    probe = linear_probe(weight)
    probe.inputs = {"x": x}
    got = run(probe.native(isa=isa, activations=activations), rows_plan(3))
    expected = x.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    bound = np.abs(x).astype(np.float64) @ np.abs(dequantize(weight)).T
    step = {"float32": 0.0, "int16": 1 / 65_024, "int8": 1 / 254}[activations]
    # Half a step of the largest of each group, of values half as large on average: twice the relative error.
    assert np.all(np.abs(got - expected) <= bound * (3 * step + 64 * EPSILON))


def test_names_and_counts_cover_all_formats() -> None:
    assert len(ENCODED) + len(K_QUANTS) == 15
    assert set(NATIVE_NAMES) <= set(STORED)
