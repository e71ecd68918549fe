"""Case B15: malformed safetensors are refused with the tensor and field named; valid oddities open."""

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading.loading_samples import safetensors_bytes, write
from safetensors.numpy import save_file

from mansard.loading.safetensors import SafetensorsFile, SafetensorsModel
from mansard.loading.stored import ModelFileError


def info(shape: list[int], begin: int, end: int, dtype: str = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"a": rng.random((3, 5), np.float32), "b": rng.random(7).astype(np.float16), "c": np.arange(4)}
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})
    file = SafetensorsFile.open(tmp_path / "m.safetensors")
    assert file.metadata == {"format": "np"}
    assert {n: (t.format.name, t.shape) for n, t in file.tensors.items()} == {
        "a": ("fp32", (3, 5)),
        "b": ("fp16", (7,)),
        "c": ("I64", (4,)),
    }
    for name, array in arrays.items():
        assert file.tensors[name].data.tobytes() == array.tobytes()
        assert not file.tensors[name].data.flags.owndata


DUPLICATE = b'{"w":' + json.dumps(info([1], 0, 4)).encode() + b',"w":' + json.dumps(info([1], 0, 4)).encode() + b"}"
DEFECTS = {
    "empty": (b"", "non-empty"),
    "seven bytes": (b"\0" * 7, "file size"),
    "header of 2^63": (safetensors_bytes({}, length=2**63), "header length"),
    "header over 100 MB": (safetensors_bytes({}, length=100_000_001), "at most 100000000"),
    "header past the end": (safetensors_bytes({}, length=3), "truncated"),
    "not JSON": (safetensors_bytes(b"{]"), "must be JSON"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "must be JSON in UTF-8"),
    "a list": (safetensors_bytes([]), "JSON object"),
    "deep nesting": (safetensors_bytes(b"[" * 100_000), "must be JSON"),
    "metadata of numbers": (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
    "duplicate key": (safetensors_bytes(DUPLICATE, bytes(4)), "header key is 'w'"),
    "entry a number": (safetensors_bytes({"w": 1}), "entry of 'w'"),
    "missing field": (safetensors_bytes({"w": {"dtype": "F32", "shape": [1]}}), "entry of 'w'"),
    "extra field": (safetensors_bytes({"w": info([1], 0, 4, x=1)}, bytes(4)), "entry of 'w'"),
    "unknown dtype": (safetensors_bytes({"w": info([1], 0, 4, "F31")}, bytes(4)), "dtype of 'w'"),
    "dtype a list": (safetensors_bytes({"w": info([1], 0, 4, [])}, bytes(4)), "dtype of 'w'"),  # type: ignore[arg-type]
    "negative dimension": (safetensors_bytes({"w": info([-1], 0, 4)}, bytes(4)), "shape of 'w'"),
    "fractional dimension": (safetensors_bytes({"w": info([1.0], 0, 4)}, bytes(4)), "shape of 'w'"),  # type: ignore[list-item]
    "boolean dimension": (safetensors_bytes({"w": info([True], 0, 4)}, bytes(4)), "shape of 'w'"),
    "nine dimensions": (safetensors_bytes({"w": info([1] * 9, 0, 4)}, bytes(4)), "shape of 'w'"),
    "huge shape": (safetensors_bytes({"w": info([2**62, 4], 0, 0)}), "takes 73786976294838206464 bytes"),
    "negative offset": (safetensors_bytes({"w": info([1], -4, 0)}, bytes(4)), "data_offsets of 'w'"),
    "reversed offsets": (safetensors_bytes({"w": info([1], 4, 0)}, bytes(4)), "data_offsets of 'w'"),
    "one offset": (
        safetensors_bytes({"w": info([1], 0, 4) | {"data_offsets": [0]}}, bytes(4)),
        "data_offsets",
    ),
    "past the end": (safetensors_bytes({"w": info([2], 0, 8)}, bytes(4)), "data_offsets of 'w'"),
    "size mismatch": (safetensors_bytes({"w": info([2], 0, 4)}, bytes(4)), "takes 8 bytes"),
    "overlap": (safetensors_bytes({"v": info([2], 0, 8), "w": info([1], 4, 8)}, bytes(8)), "tile"),
    "hole": (safetensors_bytes({"v": info([1], 0, 4), "w": info([1], 8, 12)}, bytes(12)), "of 'w'.*tile"),
    "hole in front": (safetensors_bytes({"w": info([1], 4, 8)}, bytes(8)), "tile"),
    "trailing bytes": (safetensors_bytes({"w": info([1], 0, 4)}, bytes(5)), "holds 5 bytes"),
    "truncated data": (safetensors_bytes({"w": info([1], 0, 4)}, bytes(3)), "data_offsets of 'w'"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_refused_by_name(tmp_path: Path, defect: str) -> None:
    raw, message = DEFECTS[defect]
    path = write(tmp_path / "bad.safetensors", raw)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message):
            SafetensorsFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_valid_oddities_open(tmp_path: Path) -> None:
    bare = write(tmp_path / "a.safetensors", safetensors_bytes({"__metadata__": {"a": "b"}}))
    assert not SafetensorsFile.open(bare).tensors
    empty = {"e": info([0, 7], 0, 0), "w": info([], 0, 4), "z": info([0], 4, 4)}
    padded = json.dumps(empty).encode() + b"   "
    file = SafetensorsFile.open(write(tmp_path / "b.safetensors", safetensors_bytes(padded, bytes(4))))
    assert {n: t.shape for n, t in file.tensors.items()} == {"e": (0, 7), "w": (), "z": (0,)}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_mutations_open_or_are_refused(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    header = {"a": info([2, 3], 0, 24), "b": info([4], 24, 32, "F16"), "c": info([1], 32, 34, "BF16")}
    data = bytearray(safetensors_bytes(header, bytes(34)))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        choice = rng.randrange(4)
        if choice == 0:
            data[at] = rng.randrange(256)
        elif choice == 1:
            data[at : at + rng.randrange(1, 5)] = b""
        elif choice == 2:
            data[at:at] = rng.choice([b"9", b"-", b"1e5", b"null", b"{", b'"', b"\0", b"0" * 5000])
        else:
            data[:8] = struct.pack("<Q", rng.choice([0, 1, 2**32, 2**64 - 1]))
    path = write(tmp_path / "m.safetensors", bytes(data) or b"\0")
    try:
        file = SafetensorsFile.open(path)
    except ModelFileError:
        return
    assert sum(t.num_bytes for t in file.tensors.values()) <= len(data)


def sharded(folder: Path, weight_map: Any = None) -> Path:
    for number, name in enumerate(("x", "y")):
        save_file({name: np.full(2, number, np.float32)}, folder / f"model-{number}.safetensors")
    mapping = {"x": "model-0.safetensors", "y": "model-1.safetensors"} if weight_map is None else weight_map
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    return folder


def test_shards_open_as_one_model(tmp_path: Path) -> None:
    model = SafetensorsModel.open(sharded(tmp_path))
    assert {n: t.data.view(np.float32).tolist() for n, t in model.tensors.items()} == {
        "x": [0, 0],
        "y": [1, 1],
    }


INDEXES = {
    "missing shard": ({"x": "model-7.safetensors"}, "no such shard"),
    "parent folder": ({"x": "../model-0.safetensors"}, "inside the folder"),
    "hidden parent": ({"x": "a/../../model-0.safetensors"}, "inside the folder"),
    "absolute": ({"x": "/etc/passwd"}, "inside the folder"),
    "backslash": ({"x": "..\\model-0.safetensors"}, "inside the folder"),
    "not a string": ({"x": 3}, "inside the folder"),
    "empty name": ({"x": ""}, "inside the folder"),
    "a list": ([1], "weight_map"),
    "empty": ({}, "weight_map"),
    "wrong shard": ({"x": "model-1.safetensors", "y": "model-1.safetensors"}, "does not hold"),
    "unknown tensor": ({"z": "model-0.safetensors"}, "does not hold"),
}


@pytest.mark.parametrize("defect", INDEXES)
def test_index_defects_are_refused(tmp_path: Path, defect: str) -> None:
    weight_map, message = INDEXES[defect]
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelFileError, match=message):
        SafetensorsModel.open(sharded(tmp_path / "model", weight_map))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    save_file({n: np.zeros(2, np.float32) for n in ("x", "y")}, folder / "model-1.safetensors")
    with pytest.raises(ModelFileError, match="another shard"):
        SafetensorsModel.open(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no \.safetensors"):
        SafetensorsModel.open(tmp_path)
