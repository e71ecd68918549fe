import gguf
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given
from hypothesis import strategies as st

from mansard.specs.precision import (
    NumberFormat,
    grouped,
    kv_cache_format,
    number_format,
    number_formats,
)

GGUF_KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"]
GGUF_KINDS += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf_block_sizes_are_those_of_the_gguf_package(kind: str) -> None:
    fmt = number_format(kind)
    assert (fmt.block_size, fmt.block_bytes) == GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


@pytest.mark.parametrize(
    ("name", "bits_per_weight"),
    [
        ("fp32", 32),
        ("bf16", 16),
        ("fp8", 8),
        ("fp6", 6),
        ("fp4", 4),
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
        ("nf4", 4.5),
        ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256)),
        ("int4", 4.125),
        ("int4-g64", 4.25),
        ("int4-g128-zp", 4 + 20 / 128),
        ("int8-g128", 8.125),
        ("Q4_K", 4.5),
        ("Q6_K", 6.5625),
        ("q8_0", 8.5),
    ],
)
def test_bits_per_weight(name: str, bits_per_weight: float) -> None:
    assert number_format(name).bits_per_weight == bits_per_weight


def test_w4a16_llama_8b_is_not_parameters_over_two() -> None:
    """Case A03: group-128 scales make 4-bit weights 4.125 bits: 6.98e9 of them take 3.35 GiB."""
    num_bytes = number_format("int4").num_bytes(6_979_321_856)
    assert num_bytes == 6_979_321_856 * 33 // 64


@given(st.sampled_from(number_formats()), st.integers(0, 1 << 70))
def test_sizes_are_exact_and_monotone(fmt: NumberFormat, count: int) -> None:
    size = fmt.num_bytes(count)
    assert size <= fmt.num_bytes(count + 1) <= size + fmt.block_bytes
    assert fmt.num_bytes(count * fmt.block_size) == count * fmt.block_bytes
    assert fmt.block_bytes * 8 >= fmt.bits * fmt.block_size


@pytest.mark.parametrize("alias", ["F16", "float16", "fp16", "half", " FP16 "])
def test_aliases_name_one_format(alias: str) -> None:
    assert number_format(alias) is number_format("fp16")


def test_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown number format 'Q4_L'; nearest: .*Q4_[01K]"):
        number_format("Q4_L")


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [("bf16", 256), ("fp16", 256), ("fp8", 128), ("int8", 132), ("int4", 72), ("int2", 40), ("q8_0", 136)],
)
def test_kv_bytes_of_a_head_of_128(name: str, num_bytes: int) -> None:
    assert kv_cache_format(name, 128).num_bytes(128) == num_bytes


def test_block_scaled_8_bit_kv_is_not_half() -> None:
    """Case A02: q8_0 keeps 34 bytes per 32 values, ×1.88 and not ×2.00."""
    ratio = kv_cache_format("bf16", 128).num_bytes(1 << 20) / kv_cache_format("q8_0", 128).num_bytes(1 << 20)
    assert ratio == 32 / 17


@pytest.mark.parametrize(("name", "head_dim"), [("Q4_K", 128), ("q8_0", 80), ("int4", 3), ("int8", 0)])
def test_impossible_kv_formats_are_refused(name: str, head_dim: int) -> None:
    with pytest.raises(ValueError, match=r"KV-cache format|cannot be stored"):
        kv_cache_format(name, head_dim)


def test_groups_must_fill_bytes() -> None:
    with pytest.raises(ValueError, match="whole bytes"):
        grouped(3, 7)
    with pytest.raises(ValueError, match=r"1\.\.8 bits"):
        grouped(9, 128)
    with pytest.raises(ValueError, match="-1 elements"):
        number_format("bf16").num_bytes(-1)
