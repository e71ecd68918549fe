"""The reference interpreter: a Program run op by op in float32 NumPy.

It is the oracle of the fast executors: it reads the same program and the same StepPlans, keeps keys and
values in the same fixed-size blocks, and is written to be read, not to be quick. KV formats other than fp32
are imitated by rounding each value as the format would store it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from mansard.core.types import Request, ScheduledSequence, StepPlan
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
from mansard.runtime import reference_ops as ops
from mansard.runtime.reference_ops import Array
from mansard.specs.rope import inverse_frequencies

KvFormat = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Weights = Callable[[str], npt.NDArray[np.float32]]


class ReferenceExecutor:
    """Runs the steps of one model on one rank; its only state is the paged KV cache.

    `weights(name)` returns a weight by its canonical name as float32. `cache[i]` holds layer i's keys and
    values: [2, num_blocks, block_size, K, D].
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        num_blocks: int = 64,
        block_size: int = 16,
        kv_format: KvFormat = "fp32",
    ) -> None:
        if program.tensor_parallel != 1:
            raise ValueError(f"the reference runs one rank; the program is for {program.tensor_parallel}")
        self._program = program
        self._weight = weights
        self._block_size = block_size
        self._kv_format = kv_format
        self._layout = (num_blocks, block_size)
        self.cache: dict[int, Array] = {}

    def logits(self, plan: StepPlan) -> list[Array]:
        """Run `plan` and return, for each of its sequences, the logits of its last `num_logits` tokens.

        Shapes: one [num_logits, V] a sequence. Raises: ValueError for an op that has no reference.
        """
        for source, destination in plan.block_copies:
            for cache in self.cache.values():
                cache[:, destination] = cache[:, source]
        step = _Step(self, plan)
        for op in self._program.ops:
            step.run(op)
        ends = np.cumsum([s.num_logits for s in plan.sequences])[:-1]
        return np.split(step.registers["logits"], ends)

    def forward(self, token_ids: Sequence[int]) -> Array:
        """Run one sequence from its start, alone, and return the logits of all its tokens: [T, V].

        It overwrites the first blocks of the cache.
        """
        tokens = tuple(token_ids)
        blocks = tuple(range(-(-len(tokens) // self._block_size)))
        sequence = ScheduledSequence("0", 0, tokens, blocks, len(tokens), Request("0", tokens))
        return self.logits(StepPlan((sequence,)))[0]

    def weight(self, name: str) -> Array:
        """Return a weight as float32."""
        return np.asarray(self._weight(name), np.float32)

    def layer_cache(self, op: RopeAndCache) -> Array:
        """Return the KV cache that `op` writes, made at its first use."""
        if op.cache_layer not in self.cache:
            shape = (2, *self._layout, op.num_kv_heads, op.head_dim)
            self.cache[op.cache_layer] = np.zeros(shape, np.float32)
        return self.cache[op.cache_layer]

    def slots(self, sequence: ScheduledSequence, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return block and offset of each position before `end`. Shapes: both [end]."""
        positions = np.arange(end)
        table = np.asarray(sequence.block_ids, np.int64)
        return table[positions // self._block_size], positions % self._block_size

    def stored_keys(self, k: Array) -> Array:
        """Return keys as scores see them: an int4 cache holds them rotated, and queries are rotated alike."""
        if self._kv_format != "int4":
            return self.stored(k)
        rotation = ops.hadamard(k.shape[-1])
        return np.asarray(self.stored(k @ rotation) @ rotation.T, np.float32)

    def stored(self, x: Array) -> Array:
        """Return keys or values as they read back from the cache's number format."""
        if self._kv_format == "fp16":
            return x.astype(np.float16).astype(np.float32)
        if self._kv_format == "bf16":
            return ops.round_bf16(x)
        if self._kv_format in ("int8", "int4"):
            return ops.dequantize_kv(*ops.quantize_kv(x, 8 if self._kv_format == "int8" else 4))
        return x


class _Step:
    """One plan being run: its flat tokens and the registers between ops."""

    def __init__(self, executor: ReferenceExecutor, plan: StepPlan) -> None:
        self.executor = executor
        self.sequences = plan.sequences
        self.registers: dict[str, Array] = {}
        lengths = [len(s.token_ids) for s in plan.sequences]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.token_ids = np.concatenate([np.asarray(s.token_ids, np.int64) for s in plan.sequences])
        self.positions = np.concatenate([s.start + np.arange(n) for s, n in zip(plan.sequences, lengths, strict=True)])

    def run(self, op: Op) -> None:
        interpret = _INTERPRETERS.get(type(op))
        if interpret is None:
            raise ValueError(f"{type(op).__name__} can be priced but not run: it has no reference")
        interpret(self, op)

    def write(self, name: str, value: Array, add: bool = False) -> None:
        value = np.asarray(value, np.float32)
        self.registers[name] = self.registers[name] + value if add else value

    def optional(self, name: str | None) -> Array | None:
        return None if name is None else self.executor.weight(name)

    def rows(self, index: int) -> slice:
        """Return the rows of the plan's sequence `index` in every register."""
        return slice(self.starts[index], self.starts[index + 1])


def _embed(step: _Step, op: Embed) -> None:
    step.write(op.output, step.executor.weight(op.weight)[step.token_ids] * np.float32(op.scale))


def _rms_norm(step: _Step, op: RmsNorm) -> None:
    weight = step.executor.weight(op.weight)
    y = ops.rms_norm(step.registers[op.input], weight, op.eps, op.unit_offset)
    step.write(op.output, y, op.add_to_output)


def _linear(step: _Step, op: Linear) -> None:
    weight = np.concatenate([step.executor.weight(name) for name in op.weights])
    bias = np.concatenate([step.executor.weight(name) for name in op.biases]) if op.biases else None
    assert weight.shape == (sum(op.out_features), op.in_features), f"{op.weights}: {weight.shape}"
    step.write(op.output, ops.linear(step.registers[op.input], weight, bias), op.add_to_output)


def _rope_and_cache(step: _Step, op: RopeAndCache) -> None:
    """qkv: [T, (H + 2K) · D]; q and k are rotated in place, k and v written to their blocks."""
    H, K, D = op.num_heads, op.num_kv_heads, op.head_dim
    heads = step.registers[op.qkv].reshape(-1, H + 2 * K, D)
    q, k, v = heads[:, :H], heads[:, H : H + K], heads[:, H + K :]
    if op.q_norm is not None:
        q = ops.rms_norm(q, step.executor.weight(op.q_norm), op.norm_eps, op.norm_unit_offset)
    if op.k_norm is not None:
        k = ops.rms_norm(k, step.executor.weight(op.k_norm), op.norm_eps, op.norm_unit_offset)
    frequencies, factor = inverse_frequencies(op.rope, D, op.max_position_embeddings)
    q = ops.rotate(q, step.positions, np.asarray(frequencies, np.float32), factor)
    k = ops.rotate(k, step.positions, np.asarray(frequencies, np.float32), factor)
    step.write(op.qkv, np.concatenate([q, k, v], axis=1).reshape(len(q), -1))
    cache = step.executor.layer_cache(op)
    for i, sequence in enumerate(step.sequences):
        rows = step.rows(i)
        blocks, offsets = step.executor.slots(sequence, sequence.start + len(sequence.token_ids))
        new = slice(sequence.start, None)
        cache[0, blocks[new], offsets[new]] = step.executor.stored_keys(k[rows])
        cache[1, blocks[new], offsets[new]] = step.executor.stored(v[rows])


def _attention(step: _Step, op: Attention) -> None:
    """Output: [T, H · D]; each sequence reads its own keys and values from its blocks."""
    heads = step.registers[op.qkv].reshape(-1, op.num_heads + 2 * op.num_kv_heads, op.head_dim)
    sinks = step.optional(op.sinks)
    cache = step.executor.cache[op.cache_layer]
    outputs = []
    for i, sequence in enumerate(step.sequences):
        end = sequence.start + len(sequence.token_ids)
        blocks, offsets = step.executor.slots(sequence, end)
        k, v = cache[0, blocks, offsets], cache[1, blocks, offsets]
        mask = ops.visible(np.arange(sequence.start, end), np.arange(end), op.window, op.chunk)
        q = heads[step.rows(i), : op.num_heads]
        outputs.append(ops.attention(q, k, v, mask, op.scale, op.softcap, sinks))
    step.write(op.output, np.concatenate(outputs).reshape(len(heads), -1))


def _gated_activation(step: _Step, op: GatedActivation) -> None:
    x = step.registers[op.input]
    if not op.gated:
        step.write(op.output, ops.activate(x, op.activation))
        return
    gate, up = x[:, : op.size], x[:, op.size :]
    step.write(op.output, ops.gated_activation(gate, up, op.activation, op.limit))


def _moe(step: _Step, op: MoE) -> None:
    """input, output: [T, hidden]; token by token, expert by expert."""
    x, weight = step.registers[op.input], step.executor.weight
    logits = ops.linear(x, weight(op.router), step.optional(op.router_bias))
    chosen, shares = ops.route(logits, op, step.optional(op.score_correction_bias))
    gates, ups, downs = weight(op.gate), weight(op.up), weight(op.down)
    gate_bias, up_bias, down_bias = (step.optional(name) for name in (op.gate_bias, op.up_bias, op.down_bias))
    y = np.zeros_like(x)
    for e in range(op.num_experts):
        tokens, places = np.nonzero(chosen == e)
        gate = ops.linear(x[tokens], gates[e], None if gate_bias is None else gate_bias[e])
        up = ops.linear(x[tokens], ups[e], None if up_bias is None else up_bias[e])
        hidden = ops.gated_activation(gate, up, op.activation, op.limit)
        out = ops.linear(hidden, downs[e], None if down_bias is None else down_bias[e])
        y[tokens] += out * shares[tokens, places][:, None]
    step.write(op.output, y, op.add_to_output)


def _sigmoid_gate(step: _Step, op: SigmoidGate) -> None:
    y = step.registers[op.input] * ops.sigmoid(step.registers[op.gate])
    step.write(op.output, y, op.add_to_output)


def _all_reduce(step: _Step, op: AllReduce) -> None:
    """Of one rank, the sum is what is there."""
    if op.add_to is not None:
        step.write(op.add_to, step.registers[op.register], add=True)


def _all_gather(step: _Step, op: AllGather) -> None:
    """Of one rank, all columns are there."""


def _logits(step: _Step, op: Logits) -> None:
    """logits: [sum of num_logits, V], sequence after sequence."""
    ends = step.starts[1:]
    wanted = np.concatenate([np.arange(e - s.num_logits, e) for s, e in zip(step.sequences, ends, strict=True)])
    x = step.registers[op.input][wanted.astype(np.int64)]
    logits = ops.linear(x, step.executor.weight(op.weight)) * np.float32(op.scale)
    step.write("logits", ops.softcap(logits, op.softcap))


_INTERPRETERS: dict[type, Callable[..., None]] = {
    Embed: _embed,
    RmsNorm: _rms_norm,
    Linear: _linear,
    RopeAndCache: _rope_and_cache,
    Attention: _attention,
    GatedActivation: _gated_activation,
    MoE: _moe,
    SigmoidGate: _sigmoid_gate,
    AllReduce: _all_reduce,
    AllGather: _all_gather,
    Logits: _logits,
}
