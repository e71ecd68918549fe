"""A strict, memory-mapped reader of GGUF files, version 2 and 3, little-endian.

A model file is input from a stranger, so every count, length, dimension and offset is a Python int that is
compared with what the file can hold before anything is allocated or multiplied in fixed width. Any defect is
a `ModelFileError`. Tensors are views on the map.

Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mansard.loading.stored import MappedFile, ModelFileError, StoredTensor
from mansard.specs.precision import NumberFormat, number_format

MAX_STRING_BYTES = 64 << 20
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 1_024
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 16
MAX_ARRAY_ITEMS = 1 << 24
MAX_NESTING = 2

SCALAR_CODES: dict[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9

TENSOR_FORMATS: dict[int, NumberFormat] = {
    0: number_format("fp32"),
    1: number_format("fp16"),
    2: number_format("Q4_0"),
    3: number_format("Q4_1"),
    6: number_format("Q5_0"),
    7: number_format("Q5_1"),
    8: number_format("Q8_0"),
    10: number_format("Q2_K"),
    11: number_format("Q3_K"),
    12: number_format("Q4_K"),
    13: number_format("Q5_K"),
    14: number_format("Q6_K"),
    20: number_format("IQ4_NL"),
    30: number_format("bf16"),
    39: number_format("mxfp4"),
}
OTHER_FORMATS: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file: its metadata as Python values and its tensors as stored."""

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    mapped: MappedFile

    @staticmethod
    def open(path: str | Path) -> GgufFile:
        """Read the header of the file at `path` and map its tensors.

        Raises: ModelFileError for anything that is not a sound GGUF file of a supported kind.
        """
        mapped = MappedFile(path)
        return _read(mapped, _Cursor(mapped))

    @property
    def architecture(self) -> str:
        """Return `general.architecture`.

        Raises: ModelFileError when the file does not say.
        """
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise ModelFileError(self.path, "general.architecture", value, "a model file must name one")
        return value


class _Cursor:
    """Reads the header front to back; every read is checked against the end of the file first."""

    def __init__(self, mapped: MappedFile) -> None:
        self.path, self.buffer, self.size, self.position = mapped.path, mapped.map, mapped.size, 0

    def fail(self, field: str, value: object, limit: str) -> NoReturn:
        """Refuse the file."""
        raise ModelFileError(self.path, field, value, limit) from None

    def remaining(self) -> int:
        """Return the bytes between the cursor and the end of the file."""
        return self.size - self.position

    def need(self, num_bytes: int, field: str) -> None:
        """Refuse to read past the end of the file."""
        if num_bytes > self.remaining():
            self.fail(f"{field} (bytes needed)", num_bytes, f"only {self.remaining()} are left in the file")

    def scalar(self, code: str, field: str) -> Any:
        """Read one number of `struct` code `code`."""
        self.need(struct.calcsize(code), field)
        (value,) = struct.unpack_from(code, self.buffer, self.position)
        self.position += struct.calcsize(code)
        return value

    def string(self, field: str, max_bytes: int = MAX_STRING_BYTES) -> str:
        """Read a length-prefixed UTF-8 string."""
        length = self.scalar("<Q", f"length of {field}")
        if length > max_bytes:
            self.fail(f"length of {field}", length, f"at most {max_bytes} bytes are allowed")
        self.need(length, field)
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, raw[:40], "strings must be UTF-8")

    def strings(self, count: int, field: str) -> list[str]:
        """Read `count` strings; written flat because a vocabulary has hundreds of thousands."""
        buffer, position, size = self.buffer, self.position, self.size
        unpack, values = struct.Struct("<Q").unpack_from, list[str]()
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                if position > size:
                    break
                values.append(buffer[start:position].decode("utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            self.fail(f"{field}[{len(values)}]", str(error), "it must be a UTF-8 string")
        if position > size:
            self.fail(f"{field}[{len(values)}]", position, f"the file ends at byte {size}")
        self.position = position
        return values


def _read(mapped: MappedFile, cursor: _Cursor) -> GgufFile:
    version = _read_version(cursor)
    num_tensors = _count(cursor, "tensor_count", MAX_TENSORS, 24)
    num_keys = _count(cursor, "metadata_kv_count", MAX_KEYS, 13)
    metadata = _read_metadata(cursor, num_keys)
    alignment = _alignment(cursor, metadata)
    infos = _read_infos(cursor, num_tensors)
    data_start = -(-cursor.position // alignment) * alignment
    tensors = _map_tensors(mapped, infos, data_start, alignment)
    return GgufFile(mapped.path, version, alignment, metadata, tensors, mapped)


def _read_version(cursor: _Cursor) -> int:
    cursor.need(8, "header")
    magic = cursor.buffer[:4]
    cursor.position = 4
    if magic != b"GGUF":
        cursor.fail("magic", magic, "a GGUF file begins with b'GGUF'")
    version: int = cursor.scalar("<I", "version")
    if version and version & 0xFFFF == 0:
        cursor.fail("version", version, "big-endian GGUF is not supported; convert the file")
    if version not in (2, 3):
        cursor.fail("version", version, "versions 2 and 3 are supported; convert the file")
    return version


def _count(cursor: _Cursor, field: str, limit: int, item_bytes: int) -> int:
    count: int = cursor.scalar("<Q", field)
    if count > limit:
        cursor.fail(field, count, f"at most {limit} are allowed")
    cursor.need(count * item_bytes, field)
    return count


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string("metadata key", MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail("metadata key", key, "each key may occur once")
        kind = cursor.scalar("<I", f"type of {key}")
        metadata[key] = _value(cursor, kind, key, 0)
    return metadata


def _value(cursor: _Cursor, kind: int, field: str, depth: int) -> Any:
    if kind in SCALAR_CODES:
        return cursor.scalar(SCALAR_CODES[kind], field)
    if kind == STRING:
        return cursor.string(field)
    if kind == ARRAY:
        return _array(cursor, field, depth)
    cursor.fail(f"type of {field}", kind, "known types are 0 to 12")


def _array(cursor: _Cursor, field: str, depth: int) -> list[Any]:
    if depth >= MAX_NESTING:
        cursor.fail(f"nesting of {field}", depth + 1, f"at most {MAX_NESTING} levels are allowed")
    kind = cursor.scalar("<I", f"item type of {field}")
    count = cursor.scalar("<Q", f"length of {field}")
    if count > MAX_ARRAY_ITEMS:
        cursor.fail(f"length of {field}", count, f"at most {MAX_ARRAY_ITEMS} items are allowed")
    if kind in SCALAR_CODES:
        return _numbers(cursor, kind, count, field)
    cursor.need(count * (12 if kind == ARRAY else 8), field)
    if kind == STRING:
        return cursor.strings(count, field)
    if kind == ARRAY:
        return [_array(cursor, field, depth + 1) for _ in range(count)]
    cursor.fail(f"item type of {field}", kind, "known types are 0 to 12")


def _numbers(cursor: _Cursor, kind: int, count: int, field: str) -> list[Any]:
    dtype = np.dtype(SCALAR_CODES[kind].replace("<?", "u1"))
    cursor.need(count * dtype.itemsize, field)
    values = np.frombuffer(cursor.buffer, dtype, count, cursor.position)
    cursor.position += count * dtype.itemsize
    return [bool(v) for v in values] if kind == 7 else values.tolist()


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail("general.alignment", value, f"it must be a power of two of at most {MAX_ALIGNMENT}")
    return value


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    format: NumberFormat
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def _read_infos(cursor: _Cursor, num_tensors: int) -> list[_Info]:
    infos: list[_Info] = []
    names: set[str] = set()
    for _ in range(num_tensors):
        name = cursor.string("tensor name", MAX_NAME_BYTES)
        if name in names:
            cursor.fail("tensor name", name, "each name may occur once")
        names.add(name)
        infos.append(_read_info(cursor, name))
    return infos


def _read_info(cursor: _Cursor, name: str) -> _Info:
    num_dims = cursor.scalar("<I", f"dimension count of {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.fail(f"dimension count of {name!r}", num_dims, f"1 to {MAX_DIMS} are allowed")
    dims = [cursor.scalar("<Q", f"dimensions of {name!r}") for _ in range(num_dims)]
    kind = cursor.scalar("<I", f"type of {name!r}")
    offset = cursor.scalar("<Q", f"offset of {name!r}")
    number = _tensor_format(cursor, kind, name)
    if min(dims) < 1 or dims[0] % number.block_size:
        cursor.fail(
            f"dimensions of {name!r}",
            dims,
            f"each must be 1 or more, the first a multiple of {number.block_size} ({number.name}'s block)",
        )
    num_bytes = number.num_bytes(math.prod(dims))
    if num_bytes > cursor.size:
        cursor.fail(f"dimensions of {name!r}", dims, f"{num_bytes} bytes exceed the file's {cursor.size}")
    return _Info(name, number, tuple(reversed(dims)), offset, num_bytes)


def _tensor_format(cursor: _Cursor, kind: int, name: str) -> NumberFormat:
    if kind in TENSOR_FORMATS:
        return TENSOR_FORMATS[kind]
    label = OTHER_FORMATS.get(kind, kind)
    known = ", ".join(f.name for f in TENSOR_FORMATS.values())
    cursor.fail(f"type of {name!r}", label, f"supported are {known}; requantize the file")


def _map_tensors(mapped: MappedFile, infos: list[_Info], data_start: int, alignment: int) -> dict[str, StoredTensor]:
    end, previous = 0, "the header"
    for info in sorted(infos, key=lambda i: i.offset):
        field = f"offset of {info.name!r}"
        if info.offset % alignment:
            raise ModelFileError(mapped.path, field, info.offset, f"it must be a multiple of {alignment}")
        if data_start + info.offset + info.num_bytes > mapped.size:
            raise ModelFileError(
                mapped.path,
                field,
                info.offset,
                f"its {info.num_bytes} bytes end past the file's {mapped.size}: truncated or damaged",
            )
        if info.offset < end:
            raise ModelFileError(mapped.path, field, info.offset, f"it overlaps {previous!r}")
        end, previous = info.offset + info.num_bytes, info.name
    return {
        i.name: StoredTensor(i.name, i.format, i.shape, mapped.view(data_start + i.offset, i.num_bytes)) for i in infos
    }
