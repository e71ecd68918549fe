import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from loading.loading_samples import entry, gguf_bytes, random_floats, tensor_info, text, write

from mansard.loading.ggml_encode import quantize
from mansard.loading.gguf import GgufFile
from mansard.loading.gguf_writer import write_gguf
from mansard.loading.stored import ModelFileError

METADATA = {
    "general.architecture": "llama",
    "a.count": 7,
    "a.large": 1 << 40,
    "a.negative": -3,
    "a.ratio": 0.5,
    "a.flag": True,
    "a.words": ["ein", "zwei", "τρία", ""],
    "a.ids": [1, 2, 3],
    "a.signed": [-1, 5],
    "a.scores": [0.25, -1.0],
    "a.flags": [True, False],
}


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_what_is_written_is_read(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(0)
    written = [
        quantize(random_floats(rng, 4, 64), "Q4_1", "two"),
        quantize(random_floats(rng, 3), "fp32", "one"),
        quantize(random_floats(rng, 2, 3, 32), "mxfp4", "three"),
    ]
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", METADATA, written, alignment))
    assert {**file.metadata} == METADATA | ({} if alignment == 32 else {"general.alignment": alignment})
    assert file.architecture == "llama"
    for tensor in written:
        read = file.tensors[tensor.name]
        assert (read.format, read.shape) == (tensor.format, tensor.shape)
        np.testing.assert_array_equal(read.data, tensor.data)
        assert not read.data.flags.writeable and not read.data.flags.owndata


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    values = random_floats(np.random.default_rng(1), 6, 64)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "ß"])
    writer.add_tensor("w", values)
    writer.add_tensor("h", values.astype(np.float16))
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile.open(tmp_path / "m.gguf")
    assert file.metadata["qwen2.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ß"]
    assert [(t.format.name, t.shape) for t in file.tensors.values()] == [
        ("fp32", (6, 64)),
        ("fp16", (6, 64)),
        ("Q8_0", (6, 64)),
    ]
    np.testing.assert_array_equal(file.tensors["q"].data, raw.reshape(-1))


def test_version_2_and_nested_arrays(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2B", 0, 2, 8, 9)
    nested = entry("deep", 9, struct.pack("<IQ", 9, 2) + inner + inner)
    file = GgufFile.open(write(tmp_path / "m.gguf", gguf_bytes([nested], version=2)))
    assert file.version == 2
    assert file.metadata["deep"] == [[8, 9], [8, 9]]
    assert not file.tensors


F32 = [4]
GOOD = tensor_info("w", F32)
U32 = struct.pack("<I", 2)
DEFECTS = {
    "empty": (b"", "non-empty"),
    "magic": (gguf_bytes(magic=b"GGML"), "magic"),
    "short": (b"GGUF\3\0", "header"),
    "version 1": (gguf_bytes(version=1), "versions 2 and 3"),
    "version 4": (gguf_bytes(version=4), "versions 2 and 3"),
    "big-endian": (gguf_bytes(version=3 << 24), "big-endian"),
    "duplicate key": (gguf_bytes([entry("k", 4, U32)] * 2), "metadata key.*'k'.*once"),
    "duplicate name": (gguf_bytes([], [GOOD, GOOD], bytes(64)), "tensor name.*'w'.*once"),
    "value type": (gguf_bytes([entry("k", 13, U32 * 2)]), "type of k is 13"),
    "item type": (gguf_bytes([entry("k", 9, struct.pack("<IQ", 99, 1))]), "item type of k is 99"),
    "nesting": (gguf_bytes([entry("k", 9, struct.pack("<IQ", 9, 1) * 2 + bytes(64))]), "nesting of k"),
    "not UTF-8": (gguf_bytes([entry("k", 8, text(b"\xff\xfe"))]), "UTF-8"),
    "array not UTF-8": (gguf_bytes([entry("k", 9, struct.pack("<IQ", 8, 1) + text(b"\xff"))]), r"k\[0\]"),
    "key not UTF-8": (gguf_bytes([text(b"\xff") + struct.pack("<II", 4, 1)]), "UTF-8"),
    "alignment 0": (gguf_bytes([entry("general.alignment", 4, struct.pack("<I", 0))]), "power of two"),
    "alignment 48": (gguf_bytes([entry("general.alignment", 4, struct.pack("<I", 48))]), "power of two"),
    "alignment text": (gguf_bytes([entry("general.alignment", 8, text("32"))]), "power of two"),
    "no dimensions": (gguf_bytes([], [tensor_info("w", [])], bytes(64)), "dimension count.*is 0"),
    "five dimensions": (gguf_bytes([], [tensor_info("w", [1] * 5)], bytes(64)), "dimension count.*is 5"),
    "zero dimension": (gguf_bytes([], [tensor_info("w", [4, 0])], bytes(64)), "each must be 1 or more"),
    "tensor type": (gguf_bytes([], [tensor_info("w", F32, kind=77)], bytes(64)), "type of 'w' is 77"),
    "known but unsupported": (
        gguf_bytes([], [tensor_info("w", [256], 16)], bytes(99)),
        "IQ2_XXS.*requantize",
    ),
    "partial block": (gguf_bytes([], [tensor_info("w", [33], 2)], bytes(64)), "multiple of 32"),
    "misaligned offset": (gguf_bytes([], [tensor_info("w", F32, offset=8)], bytes(64)), "multiple of 32"),
    "offset past the end": (gguf_bytes([], [tensor_info("w", F32, offset=96)], bytes(64)), "truncated"),
    "offset of 2^64 - 32": (
        gguf_bytes([], [tensor_info("w", F32, offset=2**64 - 32)], bytes(64)),
        "truncated",
    ),
    "overlap": (gguf_bytes([], [GOOD, tensor_info("v", F32)], bytes(64)), "overlaps 'w'"),
    "truncated data": (gguf_bytes([], [GOOD], bytes(15)), "truncated"),
    "missing data": (gguf_bytes([], [GOOD])[:-1], "truncated"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_refused_by_name(tmp_path: Path, defect: str) -> None:
    raw, message = DEFECTS[defect]
    with pytest.raises(ModelFileError, match=message) as caught:
        GgufFile.open(write(tmp_path / "bad.gguf", raw))
    assert str(tmp_path / "bad.gguf") in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="readable"):
        GgufFile.open(tmp_path)


def test_a_file_without_architecture_is_refused(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path / "m.gguf", gguf_bytes()))
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        _ = file.architecture


def test_writer_refuses_what_gguf_cannot_hold(tmp_path: Path) -> None:
    for value, message in (
        (None, "cannot be None"),
        ([], "cannot be"),
        ([1, "a"], "one type"),
        (1 << 64, "64 bits"),
    ):
        with pytest.raises(ValueError, match=message):
            write_gguf(tmp_path / "m.gguf", {"k": value}, [])


def test_released_pages_read_the_same_again(tmp_path: Path) -> None:
    values = quantize(random_floats(np.random.default_rng(2), 64, 256), "fp32", "w")
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", {}, [values]))
    before = file.tensors["w"].data.copy()
    file.mapped.release(file.tensors["w"].data)
    file.mapped.release(file.tensors["w"].data.copy())  # not a view on the map: nothing happens
    np.testing.assert_array_equal(file.tensors["w"].data, before)
