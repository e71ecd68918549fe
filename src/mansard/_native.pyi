"""
The native executor: packed weights, paged KV cache and whole steps in C++.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


BLOCK_SIZE: int = 16

def isas() -> list[str]:
    """The kernel sets this processor can run, slowest first."""

def read_rate(isa: str, threads: int, bytes: int, repeats: int) -> float:
    """Best bytes/s of reading a buffer in four streams a thread."""

def operation_rate(isa: str, threads: int, kind: str, repeats: int) -> float:
    """
    Best operations/s of fused multiply-adds (fma) or int8 dot products (dot) from registers.
    """

class Model:
    def __init__(self, isa: str, num_threads: int, activations: str, max_tokens: int, max_positions: int, num_blocks: int) -> None: ...

    def add_register(self, width: int) -> int: ...

    def add_weight(self, format: str, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, columns: int) -> int: ...

    def add_rope(self, rotary_dim: int, cos: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> int: ...

    def add_kv_layer(self, format: str, heads: int, dim: int) -> int: ...

    def embed(self, output: int, weight: int, scale: float) -> None: ...

    def rms_norm(self, input: int, output: int, weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, add: bool) -> None: ...

    def linear(self, input: int, output: int, weights: Sequence[int], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, add: bool) -> None: ...

    def rope_and_cache(self, qkv: int, kv_layer: int, rope: int, num_heads: int, num_kv_heads: int, dim: int, q_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, k_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float) -> None: ...

    def attention(self, qkv: int, output: int, kv_layer: int, num_heads: int, num_kv_heads: int, dim: int, scale: float, window: int, chunk: int, softcap: float, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    def gated_activation(self, input: int, output: int, activation: str, gated: bool, limit: float) -> None: ...

    def moe(self, input: int, output: int, router: int, gate: Sequence[int], up: Sequence[int], down: Sequence[int], top_k: int, activation: str, scoring: str, normalize: bool, add: bool, scaling: float, limit: float, router_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, correction_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, gate_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, up_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, down_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, num_groups: int, topk_groups: int) -> None: ...

    def sigmoid_gate(self, input: int, gate: int, output: int, add: bool) -> None: ...

    def logits(self, input: int, weight: int, scale: float, softcap: float) -> None: ...

    def step(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table_ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logit_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def hidden_states(self, first: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def copy_block(self, source: int, destination: int) -> None: ...

    def profile(self, on: bool) -> None:
        """Add up the seconds of each op from now on, or stop."""

    @property
    def op_seconds(self) -> list[float]:
        """Seconds of each op in the program's order since profile(True)."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def kv_bytes(self) -> int: ...

    @property
    def isa(self) -> str: ...
