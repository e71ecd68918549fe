"""Work and Layout: what an op asks of one rank's hardware, and how a replica is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.cost.formats import Part
from mansard.cost.shape import Number

Kind = Literal["gemm", "moe", "decode_attention", "prefill_attention", "linear_attention", "elementwise", "network"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one replica is spread: vLLM's words, world = tensor × data × pipeline parallel.

    `expert_parallel` of the world's tensor × data ranks split the experts whole; the rest of the split is
    within an expert. Attention is replicated over data-parallel ranks, each with its own sequences.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1

    @property
    def num_ranks(self) -> int:
        """Return the GPUs of one replica."""
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def expert_tensor_parallel(self) -> int:
        """Return over how many ranks one expert is split."""
        return max(1, self.tensor_parallel * self.data_parallel // self.expert_parallel)


@dataclass(frozen=True, slots=True)
class Work:
    """What `count` equal ops ask for, each: FLOPs, bytes by kind, kernels launched.

    Units: FLOPs, bytes. `tokens` is the rows it works on, which sets the efficiency of attention.
    """

    name: str
    kind: Kind
    part: Part
    count: int
    launches: Number
    flops: Number = 0.0
    weight_bytes: Number = 0.0
    activation_bytes: Number = 0.0
    kv_bytes: Number = 0.0
    network_bytes: Number = 0.0
    num_ranks: int = 1
    tokens: Number = 0.0
    collective: Literal["all_reduce", "all_gather", "all_to_all", "send", "none"] = "none"
