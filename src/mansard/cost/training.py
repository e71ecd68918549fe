"""What training a model needs beside running it: memory by part, and FLOPs.

Sources: ZeRO (Rajbhandari et al., arXiv 1910.02054): 16 bytes a parameter with Adam in mixed precision;
Korthikanti et al. (arXiv 2205.05198), equations 1 to 4, for activations; Kaplan et al. (arXiv 2001.08361):
6·N FLOPs a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mansard.cost.weights import num_multiplied_parameters
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import num_parameters

Recompute = Literal["none", "attention", "full"]
_OPTIMIZER_BYTES = {"adam": 12.0, "adam-8bit": 6.0, "sgd-momentum": 8.0, "sgd": 4.0}  # fp32 master copy included


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of one training replica in all, before any sharding."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float

    @property
    def total_bytes(self) -> float:
        """Return the sum of the parts."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes


def training_memory(
    spec: ModelSpec,
    *,
    batch_size: int,
    sequence_length: int,
    optimizer: str = "adam",
    recompute: Recompute = "attention",
    trainable_parameters: int | None = None,
) -> TrainingMemory:
    """Return what a step of 16-bit training holds; `trainable_parameters` below all of them is an adapter (LoRA).

    Raises: ValueError for an unknown optimizer or sizes below 1.
    """
    if optimizer not in _OPTIMIZER_BYTES:
        raise ValueError(f"unknown optimizer {optimizer!r}: known are {', '.join(_OPTIMIZER_BYTES)}")
    if batch_size < 1 or sequence_length < 1:
        raise ValueError(f"batch {batch_size} × {sequence_length} tokens: both must be at least 1")
    total = num_parameters(spec)
    trained = total if trainable_parameters is None else trainable_parameters
    return TrainingMemory(
        weights_bytes=2.0 * total,
        gradients_bytes=2.0 * trained,
        optimizer_bytes=_OPTIMIZER_BYTES[optimizer] * trained,
        activations_bytes=training_activation_bytes(spec, batch_size, sequence_length, recompute),
    )


def training_activation_bytes(
    spec: ModelSpec, batch_size: int, sequence_length: int, recompute: Recompute = "attention"
) -> float:
    """Return the activations kept for the backward pass: `L·s·b·h·(34 + 5·a·s/h)` without recomputation.

    "attention" (FlashAttention too) leaves the `5·a·s/h` out; "full" keeps each layer's input, 2 bytes.
    """
    tokens = float(batch_size) * sequence_length
    per_value = {"none": 34.0 + 5.0 * spec.num_attention_heads * sequence_length / spec.hidden_size}
    factor = (per_value | {"attention": 34.0, "full": 2.0})[recompute]
    return spec.num_hidden_layers * tokens * spec.hidden_size * factor


def training_flops(spec: ModelSpec, num_tokens: float, recompute: Recompute = "none") -> float:
    """Return the FLOPs of training on `num_tokens`: 6·N each, 8·N when the forward pass is computed again.

    N counts the parameters a token multiplies with (active experts only, without the input embedding).
    """
    return (8.0 if recompute == "full" else 6.0) * num_multiplied_parameters(spec) * num_tokens


def inference_flops(spec: ModelSpec, num_tokens: float) -> float:
    """Return the FLOPs of running `num_tokens` through the weights: 2·N each, attention's scores not counted."""
    return 2.0 * num_multiplied_parameters(spec) * num_tokens
