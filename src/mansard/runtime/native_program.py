"""compile_program: a Program's ops, one by one, into the C++ model that runs them.

Weights are packed as they are read, one at a time, and the file's pages are let go, so that loading needs little
more memory than the packed weights. A register of the program becomes one buffer for each width it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mansard.loading.stored import StoredTensor
from mansard.program.ops import (
    AllGather,
    AllReduce,
    Attention,
    Embed,
    GatedActivation,
    Linear,
    Logits,
    MoE,
    Op,
    Program,
    RmsNorm,
    RopeAndCache,
    SigmoidGate,
)
from mansard.specs.model import RopeSpec
from mansard.specs.rope import inverse_frequencies

Floats = NDArray[np.float32]

_STORED = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "mxfp4": "MXFP4"}


class WeightSource(Protocol):
    """Where weights come from; `mansard.loading.weights.Weights` is one."""

    def tensor(self, name: str) -> StoredTensor:
        """Return a weight as stored."""
        ...

    def float32(self, name: str) -> Floats:
        """Return a weight's values."""
        ...

    def release(self, name: str) -> None:
        """Let go of the memory behind a weight that has been copied."""
        ...


@dataclass(frozen=True, slots=True)
class NativeLimits:
    """How the C++ model is built: its kernels, threads and the sizes of its buffers and KV cache.

    activations: what quantized weights are multiplied with: int8 with a scale for each 32 columns (the fastest; about
    0.5 % noise a layer), int16 (two int8 planes; practically exact) or float32 (exact; slow for many rows).
    """

    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    kv_dtype: str
    num_threads: int
    activations: str = "int8"
    isa: str = ""


def compile_program(
    program: Program,
    weights: WeightSource,
    limits: NativeLimits,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Return a `mansard._native.Model` that runs `program`.

    `progress(done, total)` is called after each op. Raises: ValueError for an op or a weight format that the native
    executor does not have.
    """
    if program.tensor_parallel != 1:
        raise ValueError(f"the native executor runs one rank; the program is for {program.tensor_parallel}")
    compiler = _Compiler(weights, limits)
    for i, op in enumerate(program.ops):
        compiler.add(op)
        if progress is not None:
            progress(i + 1, len(program.ops))
    return compiler.model


@dataclass(slots=True)
class _Compiler:
    """The C++ model under construction, and what was already made for it."""

    weights: WeightSource
    limits: NativeLimits
    model: Any = field(init=False)
    widths: dict[str, int] = field(default_factory=dict)  # of each register as last written
    registers: dict[tuple[str, int], int] = field(default_factory=dict)
    packed: dict[str, list[int]] = field(default_factory=dict)
    ropes: dict[tuple[RopeSpec, int], int] = field(default_factory=dict)
    kv_layers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from mansard import _native

        limits = self.limits
        self.model = _native.Model(
            limits.isa,
            limits.num_threads,
            limits.activations,
            limits.max_num_batched_tokens,
            limits.max_model_len,
            limits.num_blocks,
        )

    def add(self, op: Op) -> None:
        method = _METHODS.get(type(op))
        if method is None:
            raise ValueError(f"{type(op).__name__} can be priced but not run by the native executor")
        method(self, op)

    def read(self, name: str) -> int:
        return self.registers[name, self.widths[name]]

    def write(self, name: str, width: int) -> int:
        self.widths[name] = width
        if (name, width) not in self.registers:
            self.registers[name, width] = self.model.add_register(width)
        return self.registers[name, width]

    def matrices(self, name: str) -> list[int]:
        """Pack a weight, [out, in] as one matrix or [experts, out, in] as one for each expert."""
        if name not in self.packed:
            tensor = self.weights.tensor(name)
            kind = _STORED.get(tensor.format.name, tensor.format.name)
            rows, columns = tensor.shape[-2:]
            parts = np.split(tensor.data, tensor.shape[0]) if len(tensor.shape) == 3 else [tensor.data]
            self.packed[name] = [self.model.add_weight(kind, np.ascontiguousarray(p), rows, columns) for p in parts]
            self.weights.release(name)
        return self.packed[name]

    def vector(self, name: str | None, add: float = 0.0) -> Floats | None:
        if name is None:
            return None
        return np.ascontiguousarray(self.weights.float32(name).reshape(-1) + np.float32(add), np.float32)

    def embed(self, op: Embed) -> None:
        self.model.embed(self.write(op.output, op.hidden_size), self.matrices(op.weight)[0], op.scale)

    def rms_norm(self, op: RmsNorm) -> None:
        weight = self.vector(op.weight, 1.0 if op.unit_offset else 0.0)
        self.model.rms_norm(self.read(op.input), self.write(op.output, op.size), weight, op.eps, op.add_to_output)

    def linear(self, op: Linear) -> None:
        matrices = [m for name in op.weights for m in self.matrices(name)]
        bias = np.concatenate([self.weights.float32(b) for b in op.biases]) if op.biases else None
        output = self.write(op.output, sum(op.out_features))
        self.model.linear(self.read(op.input), output, matrices, bias, op.add_to_output)

    def rope(self, op: RopeAndCache) -> int:
        """Return the table of cosines and sines for `op`, or -1 when it does not rotate.

        Angles are float32 products, as Hugging Face computes them.
        """
        if op.rope.kind == "none":
            return -1
        key = (op.rope, op.head_dim)
        if key not in self.ropes:
            frequencies, factor = inverse_frequencies(op.rope, op.head_dim, op.max_position_embeddings)
            positions = np.arange(self.limits.max_model_len, dtype=np.float32)
            angles = positions[:, None] * np.asarray(frequencies, np.float32)
            scale = np.float32(factor)
            self.ropes[key] = self.model.add_rope(2 * len(frequencies), np.cos(angles) * scale, np.sin(angles) * scale)
        return self.ropes[key]

    def rope_and_cache(self, op: RopeAndCache) -> None:
        layer = self.model.add_kv_layer(self.limits.kv_dtype, op.num_kv_heads, op.head_dim)
        self.kv_layers[op.cache_layer] = layer
        offset = 1.0 if op.norm_unit_offset else 0.0
        self.model.rope_and_cache(
            self.read(op.qkv),
            layer,
            self.rope(op),
            op.num_heads,
            op.num_kv_heads,
            op.head_dim,
            self.vector(op.q_norm, offset),
            self.vector(op.k_norm, offset),
            op.norm_eps,
        )

    def attention(self, op: Attention) -> None:
        self.model.attention(
            self.read(op.qkv),
            self.write(op.output, op.num_heads * op.head_dim),
            self.kv_layers[op.cache_layer],
            op.num_heads,
            op.num_kv_heads,
            op.head_dim,
            op.scale,
            op.window or 0,
            op.chunk or 0,
            op.softcap or 0.0,
            self.vector(op.sinks),
        )

    def gated_activation(self, op: GatedActivation) -> None:
        source, output = self.read(op.input), self.write(op.output, op.size)
        self.model.gated_activation(source, output, op.activation, op.gated, op.limit or 0.0)

    def moe(self, op: MoE) -> None:
        self.model.moe(
            self.read(op.input),
            self.write(op.output, op.hidden_size),
            self.matrices(op.router)[0],
            self.matrices(op.gate),
            self.matrices(op.up),
            self.matrices(op.down),
            op.top_k,
            op.activation,
            op.scoring,
            op.norm_topk_prob,
            op.add_to_output,
            op.routed_scaling_factor,
            op.limit or 0.0,
            *(
                self.vector(n)
                for n in (op.router_bias, op.score_correction_bias, op.gate_bias, op.up_bias, op.down_bias)
            ),
            op.num_expert_groups,
            op.topk_groups,
        )

    def sigmoid_gate(self, op: SigmoidGate) -> None:
        source, gate = self.read(op.input), self.read(op.gate)
        self.model.sigmoid_gate(source, gate, self.write(op.output, op.size), op.add_to_output)

    def logits(self, op: Logits) -> None:
        self.model.logits(self.read(op.input), self.matrices(op.weight)[0], op.scale, op.softcap or 0.0)

    def one_rank(self, op: AllReduce | AllGather) -> None:
        """Refuse collectives: a program of one rank has none."""
        raise ValueError(f"{type(op).__name__} over {op.num_ranks} ranks: the native executor runs one rank")


_METHODS: dict[type, Callable[[_Compiler, Any], None]] = {
    Embed: _Compiler.embed,
    RmsNorm: _Compiler.rms_norm,
    Linear: _Compiler.linear,
    RopeAndCache: _Compiler.rope_and_cache,
    Attention: _Compiler.attention,
    GatedActivation: _Compiler.gated_activation,
    MoE: _Compiler.moe,
    SigmoidGate: _Compiler.sigmoid_gate,
    AllReduce: _Compiler.one_rank,
    AllGather: _Compiler.one_rank,
    Logits: _Compiler.logits,
}
