"""StoredTensor: a weight exactly as its file holds it, and the one error that a bad model file raises.

Nothing here copies or expands: `data` is a view on the memory map, and what to do with its bytes is the
reader's choice. Shared by the GGUF and the safetensors readers.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mansard.specs.precision import NumberFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class ModelFileError(ValueError):
    """A model file is truncated, damaged, hostile or of a kind that is not supported.

    Carries the file, the field that is wrong, the value found and the limit it breaks.
    """

    def __init__(self, file: str | Path, field: str, value: object, limit: str) -> None:
        self.file, self.field, self.value, self.limit = str(file), field, value, limit
        shown = repr(value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        super().__init__(f"{self.file}: {field} is {shown}; {limit}")


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A named tensor in its stored format.

    Shapes: `shape` is row-major in Hugging Face's order ([out, in]; [experts, out, in]); `data` is 1-D uint8
    of `format.num_bytes(num_elements)` bytes, rows one after the other.
    """

    name: str
    format: NumberFormat
    shape: tuple[int, ...]
    data: Bytes

    @property
    def num_elements(self) -> int:
        """Return how many numbers the tensor holds."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return how many bytes it takes as stored."""
        return int(self.data.size)

    @property
    def rows(self) -> Bytes:
        """Return the bytes row by row: [number of rows, bytes of a row], a view."""
        row_bytes = self.format.num_bytes(self.shape[-1]) if self.shape else self.num_bytes
        return self.data.reshape(-1, row_bytes)


class MappedFile:
    """A file mapped read-only into memory; views on it stay valid as long as they are referenced."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelFileError(path, "path", str(path), "there is no such file") from None
        except (OSError, ValueError) as error:
            raise ModelFileError(path, "file", str(error), "it must be a readable, non-empty file") from None
        self.size = len(self.map)
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            self.map.madvise(mmap.MADV_SEQUENTIAL)  # weights are read front to back, once

    def view(self, offset: int, num_bytes: int) -> Bytes:
        """Return the `num_bytes` bytes from `offset` on, which lie inside the file, as a view on the map."""
        assert offset >= 0 and num_bytes >= 0 and offset + num_bytes <= self.size
        return np.frombuffer(self.map, np.uint8, num_bytes, offset)

    def release(self, data: Bytes) -> None:
        """Tell the system that the pages under the view `data` are not needed soon: they leave the RSS."""
        if not data.size or not hasattr(mmap, "MADV_DONTNEED"):
            return
        base = np.frombuffer(self.map, np.uint8).__array_interface__["data"][0]
        first = data.__array_interface__["data"][0] - base
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        if 0 <= first < self.size:
            self.map.madvise(mmap.MADV_DONTNEED, start, min(first + data.size, self.size) - start)
