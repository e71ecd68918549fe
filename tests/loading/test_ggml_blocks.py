import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from mansard.loading.ggml_blocks import ELEMENTS_PER_SLICE, dequantize, dequantize_bytes
from mansard.loading.ggml_encode import quantize
from mansard.loading.stored import StoredTensor
from mansard.specs.precision import NumberFormat, number_format

ENCODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"]
KINDS = [*ENCODED, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def reference(raw: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_random_blocks_decode_as_in_the_gguf_package(kind: str) -> None:
    """Any byte pattern is a valid block (NaN and infinite scales too), so random bytes cover the format."""
    fmt = number_format(kind)
    raw = np.random.default_rng(1).integers(0, 256, (3, 700 * fmt.block_bytes), dtype=np.uint8)
    values = dequantize_bytes(raw.reshape(-1), fmt.name)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.reshape(3, -1), reference(raw, kind))


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_more_blocks_than_one_slice(kind: str) -> None:
    """Work is done in slices; the seam and the short last slice must not show."""
    fmt = number_format(kind)
    count = 2 * ELEMENTS_PER_SLICE // fmt.block_size + 3
    raw = np.random.default_rng(2).integers(0, 256, (1, count * fmt.block_bytes), dtype=np.uint8)
    np.testing.assert_array_equal(dequantize_bytes(raw[0], fmt.name), reference(raw, kind)[0])


@pytest.mark.parametrize("kind", [k for k in ENCODED if k != "IQ4_NL"])
def test_encoder_equals_the_gguf_package(kind: str) -> None:
    values = np.random.default_rng(3).standard_normal((64, 256), dtype=np.float32)
    values[5] = 0
    expected = gguf.quants.quantize(values, GGMLQuantizationType[kind]).view(np.uint8).reshape(-1)
    np.testing.assert_array_equal(quantize(values, kind).data, expected)


# Largest error over a block's largest magnitude. A step errs by half of itself, and by a whole one at the end
# that lacks a level (Q4_0, Q5_0); IQ4_NL's widest gap is 24 of 127 and its top 14 short; MXFP4's scale is a
# power of two, so a magnitude of up to 8/6 of the top code is cut to it, 1/4 of itself at most.
BOUNDS = {
    "F32": 0,
    "F16": 2**-11,
    "BF16": 2**-8,
    "Q4_0": 1 / 8 + 1e-3,
    "Q4_1": 1 / 15 + 2e-3,
    "Q5_0": 1 / 16 + 1e-3,
    "Q5_1": 1 / 31 + 2e-3,
    "Q8_0": 0.5 / 127 + 1e-3,
    "IQ4_NL": 0.2,
    "MXFP4": 0.25,
}


@pytest.mark.parametrize("kind", ENCODED)
def test_encoding_then_decoding_stays_within_half_a_step(kind: str) -> None:
    values = np.random.default_rng(4).standard_normal((50, 32), dtype=np.float32)
    values[7] = 0
    error = np.abs(dequantize(quantize(values, kind)) - values).max(axis=1)
    assert np.all(error <= BOUNDS[kind] * np.abs(values).max(axis=1))


@pytest.mark.parametrize("kind", ENCODED)
def test_shapes_survive_and_decoding_is_idempotent(kind: str) -> None:
    """What was rounded once encodes to itself: decode ∘ encode changes it by an fp16 scale's error."""
    stored = quantize(np.random.default_rng(5).standard_normal((2, 3, 64), dtype=np.float32), kind, "w")
    once = dequantize(stored)
    assert stored.shape == once.shape == (2, 3, 64)
    assert stored.num_bytes == stored.format.num_bytes(384)
    assert stored.rows.shape == (6, stored.format.num_bytes(64))
    again = dequantize(quantize(once, kind))
    np.testing.assert_allclose(again, once, atol=2**-9 * np.abs(once).max())


def test_mxfp4_values_by_hand() -> None:
    """Exponent 127 is 1: codes 0..15 read 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives, low nibbles first."""
    codes = bytes(range(16)) + bytes(range(16))
    packed = bytes([127]) + bytes(codes[i] | codes[i + 16] << 4 for i in range(16))
    values = dequantize_bytes(np.frombuffer(packed, np.uint8), "mxfp4")
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values.tolist() == 2 * [*half, *[-v for v in half]]


def test_unknown_formats_are_refused_by_name() -> None:
    odd = NumberFormat("F8_E4M3", 8, 1, 1)
    with pytest.raises(ValueError, match="cannot decode F8_E4M3"):
        dequantize(StoredTensor("w", odd, (1,), np.zeros(1, np.uint8)))
    with pytest.raises(ValueError, match="cannot encode Q4_K"):
        quantize(np.zeros((1, 256), np.float32), "Q4_K")
    with pytest.raises(ValueError, match="do not fill Q4_0's blocks of 32"):
        quantize(np.zeros((2, 33), np.float32), "Q4_0")
