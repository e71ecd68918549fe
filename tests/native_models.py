"""Small programs on the native executor, for its tests: fed through an embedding, read through an identity.

A register can only be filled by an embedding and read by the logits, so `probe` puts a float32 table before the ops
under test and a float32 identity after them; both are exact. `Probe` runs one program on the native executor and on
the reference, from the same weights and the same plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.types import Request, ScheduledSequence, StepPlan
from mansard.loading.ggml_blocks import LAYOUTS, dequantize
from mansard.loading.ggml_encode import quantize
from mansard.loading.stored import StoredTensor
from mansard.program.ops import Embed, Logits, Op, Program, RopeAndCache
from mansard.runtime.executor import NativeExecutor
from mansard.runtime.native_program import NativeLimits, compile_program
from mansard.runtime.reference import ReferenceExecutor
from mansard.runtime.sampler import Sampler
from mansard.specs.precision import number_format

BLOCK = 16
ENCODED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "mxfp4")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
STORED = (*ENCODED, *K_QUANTS)
NATIVE_NAMES = {"mxfp4": "MXFP4"}  # all others are called alike


def isas() -> list[str]:
    """Return the kernel sets of this machine."""
    from mansard import _native

    return list(_native.isas())


def stored(rng: np.random.Generator, fmt: str, rows: int, columns: int, name: str = "weight") -> StoredTensor:
    """Return a random tensor in a stored format: rounded normals, or for K-quants blocks of random bytes."""
    if fmt not in K_QUANTS:
        return quantize(rng.standard_normal((rows, columns), np.float32), fmt, name)
    blocks = rng.integers(0, 256, rows * columns // 256 * LAYOUTS[fmt].itemsize, np.uint8).view(LAYOUTS[fmt])
    blocks["d"] = rng.uniform(0.001, 0.02, len(blocks)) * rng.choice([-1, 1], len(blocks))
    if "dmin" in LAYOUTS[fmt].names:
        blocks["dmin"] = rng.uniform(0.001, 0.02, len(blocks))
    return StoredTensor(name, number_format(fmt), (rows, columns), blocks.view(np.uint8))


class TensorWeights:
    """A weight source over tensors in memory; calling it gives float32, as the reference wants."""

    def __init__(self, tensors: Mapping[str, StoredTensor | np.ndarray]) -> None:
        self._tensors = {n: t if isinstance(t, StoredTensor) else quantize(t, "fp32", n) for n, t in tensors.items()}

    def tensor(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def float32(self, name: str) -> np.ndarray:
        return dequantize(self._tensors[name])

    def release(self, name: str) -> None:
        """Nothing is mapped."""

    def __call__(self, name: str) -> np.ndarray:
        return self.float32(name)


class QuantizedWeights:
    """Another source's weights, its matrices rounded to a stored format where their rows fill blocks."""

    def __init__(self, weights: Any, fmt: str) -> None:
        self._weights, self._format = weights, fmt
        self._cache: dict[str, StoredTensor] = {}

    def tensor(self, name: str) -> StoredTensor:
        if name not in self._cache:
            values = self._weights.float32(name)
            fits = values.ndim >= 2 and values.shape[-1] % 32 == 0
            self._cache[name] = quantize(values, self._format, name) if fits else self._weights.tensor(name)
        return self._cache[name]

    def float32(self, name: str) -> np.ndarray:
        return dequantize(self.tensor(name))

    def release(self, name: str) -> None:
        """Nothing is mapped."""


def limits(**changes: Any) -> NativeLimits:
    """Return small limits, exact unless `changes` say otherwise."""
    defaults = {
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "num_blocks": 24,
        "kv_dtype": "f32",
        "num_threads": 1,
        "activations": "float32",
    }
    return NativeLimits(**{**defaults, **changes})


def part(
    name: str, start: int, tokens: Sequence[int], blocks: Sequence[int], num_logits: int | None = None
) -> ScheduledSequence:
    """Return one sequence's part of a plan; without `num_logits` all its tokens have logits."""
    count = len(tokens) if num_logits is None else num_logits
    return ScheduledSequence(name, start, tuple(tokens), tuple(blocks), count, Request(name, tuple(tokens)))


def rows_plan(count: int, first: int = 0) -> StepPlan:
    """Return the plan that runs rows `first` … of the input table as one sequence from its start."""
    blocks = range(-(-count // BLOCK))
    return StepPlan((part("rows", 0, range(first, first + count), blocks),))


def native(program: Program, weights: Any, settings: NativeLimits, vocab_size: int) -> NativeExecutor:
    """Return an executor of `program` with an ordinary sampler."""
    return NativeExecutor(compile_program(program, weights, settings), vocab_size, Sampler(vocab_size))


@dataclass
class Probe:
    """A few ops between an input table ([T, columns], row t is token t) and what register `output` holds.

    `tables` names more inputs: a register each, embedded from a table of its own, before the ops.
    """

    ops: Sequence[Op]
    inputs: Mapping[str, np.ndarray]
    output: str
    width: int
    weights: Mapping[str, StoredTensor | np.ndarray] = field(default_factory=dict)

    def program(self) -> Program:
        feeds = [Embed(n, f"table.{n}", len(t), t.shape[1]) for n, t in self.inputs.items()]
        last = Logits(self.output, "identity", self.width, self.width)
        ops = (*feeds, *self.ops, last)
        caches = sum(isinstance(op, RopeAndCache) for op in ops)
        return Program(tuple(ops), (0,) * len(ops), caches)

    def source(self) -> TensorWeights:
        tables = {f"table.{n}": t for n, t in self.inputs.items()}
        return TensorWeights({**tables, "identity": np.eye(self.width, dtype=np.float32), **self.weights})

    def native(self, **changes: Any) -> NativeExecutor:
        return native(self.program(), self.source(), limits(**changes), self.width)

    def reference(self, **options: Any) -> ReferenceExecutor:
        return ReferenceExecutor(self.program(), self.source(), block_size=BLOCK, **options)


def run(executor: NativeExecutor, plan: StepPlan) -> np.ndarray:
    """Return the logits of a plan: [rows, V]."""
    return executor.compute(plan)[0]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Say whether two float32 arrays hold the same bits."""
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())
