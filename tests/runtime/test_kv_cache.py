"""The KV cache's sizes: what the ledger says is what is allocated, and what a person asks for is what they get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from native_models import limits, native
from tiny_models import FAMILIES, VOCAB_SIZE, tiny_model

from mansard.loading.model_files import locate
from mansard.loading.weights import Weights
from mansard.program.decoder import decoder
from mansard.runtime.kv_cache import KV_DTYPES, NATIVE_BLOCK_SIZE, KvSizing, block_bytes
from mansard.runtime.loader import read_spec
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import kv_bytes_per_token

NATIVE = ("f32", "f16", "bf16", "int8", "int4")
LEDGER = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "int8": "int8", "int4": "int4"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


def opened(family: str, folder: Path) -> tuple[ModelSpec, Weights]:
    files = locate(str(tiny_model(family, folder)))
    weights = Weights.open(files.root)
    return read_spec(files, weights), weights


@pytest.mark.parametrize("family", FAMILIES)
def test_ledger_bytes_are_allocated_bytes(family: str, folder: Path) -> None:
    spec, weights = opened(family, folder)
    program = decoder(spec, max_model_len=256)
    for kv_dtype in NATIVE:
        executor = native(program, weights, limits(kv_dtype=kv_dtype, num_blocks=7), VOCAB_SIZE)
        assert executor.kv_bytes == 7 * block_bytes(program, kv_dtype)


def unpadded() -> Iterator[tuple[str, str]]:
    """Yield families whose heads fill whole vector registers, with each format."""
    for family in ("llama", "llama3", "qwen3", "gemma3", "gpt-oss"):
        for kv_dtype in NATIVE:
            yield family, kv_dtype


@pytest.mark.parametrize(("family", "kv_dtype"), list(unpadded()))
def test_a_block_is_the_ledgers_tokens(family: str, kv_dtype: str, folder: Path) -> None:
    """The planner prices a cached token by the ModelSpec alone; so many bytes the executor takes for it."""
    spec, _ = opened(family, folder)
    assert spec.head_dim % 16 == 0
    assert block_bytes(decoder(spec), kv_dtype) == NATIVE_BLOCK_SIZE * kv_bytes_per_token(spec, LEDGER[kv_dtype])


def choose(**changes: object) -> KvSizing:
    arguments = {
        "bytes_per_block": 1000,
        "block_size": 16,
        "kv_dtype": "f16",
        "context": 4096,
        "max_model_len": None,
        "num_blocks": None,
        "kv_cache_bytes": None,
        "max_num_seqs": 8,
        "available_bytes": 10_000_000,
    }
    return KvSizing.choose(**{**arguments, **changes})


def test_blocks_asked_for_are_taken() -> None:
    assert choose(num_blocks=300) == KvSizing("f16", 300, 4096)
    assert choose(num_blocks=10, kv_cache_bytes=5_000_000) == KvSizing("f16", 10, 160)


def test_bytes_asked_for_are_not_exceeded() -> None:
    assert choose(kv_cache_bytes=300_999).num_blocks == 300


def test_no_more_is_taken_than_all_sequences_fill() -> None:
    assert choose(available_bytes=10**12).num_blocks == 8 * 256
    assert choose(kv_cache_bytes=10**12, max_model_len=100).num_blocks == 8 * 7


def test_an_unasked_length_shrinks_to_what_fits() -> None:
    assert choose(kv_cache_bytes=50_000) == KvSizing("f16", 50, 800)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 32}, "hold 16 tokens"),
        ({"max_model_len": 4096, "kv_cache_bytes": 255_000}, r"one sequence of 4,096 .*lower --max-model-len"),
        ({"max_model_len": 161, "num_blocks": 10}, "one sequence of 161"),
        ({"kv_cache_bytes": 999}, "holds 0 tokens"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(**changes)


def test_every_name_is_a_native_format() -> None:
    assert set(KV_DTYPES.values()) == set(NATIVE)
    assert KV_DTYPES["auto"] == "f16"
