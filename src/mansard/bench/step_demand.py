"""What a step must do at least: the bytes it must read and the operations it must carry out.

Bytes are those of the weights as they lie packed in memory, and of the cache as it is laid out, so that MBU says how
well the kernels stream what there is; a smaller format shows as fewer bytes, not as a higher share.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.cost.decode_bound import decode_weight_bytes
from mansard.cost.formats import PrecisionPlan
from mansard.cost.memory import weight_bytes
from mansard.cost.weights import num_multiplied_parameters
from mansard.specs.model import ModelSpec
from mansard.specs.sizes import kv_bytes_per_token, num_parameters


@dataclass(frozen=True, slots=True)
class StepDemand:
    """A model as its steps load the machine. Units: bytes."""

    spec: ModelSpec
    packed_weight_bytes: int
    kv_bytes_per_token: float

    @property
    def bits_per_weight(self) -> float:
        """Return the mean bits of a packed weight."""
        return 8.0 * self.packed_weight_bytes / num_parameters(self.spec)

    @property
    def bits_per_kv_value(self) -> float:
        """Return the bits of a cached value."""
        return 16.0 * self.kv_bytes_per_token / kv_bytes_per_token(self.spec)

    def bytes_read(self, num_sequences: float, num_context_tokens: float) -> float:
        """Return the bytes of a decode step: weights once, and the cache of every sequence's context."""
        return self.weight_bytes_read(num_sequences) + num_context_tokens * self.kv_bytes_per_token

    def weight_bytes_read(self, num_sequences: float) -> float:
        """Return the packed weight bytes that a step of `num_sequences` tokens touches.

        Of experts those used in expectation, of an untied input embedding none.
        """
        plan = PrecisionPlan.uniform("bf16")  # only the share that is read matters, not the format
        whole = sum(weight_bytes(self.spec, plan).values())
        return self.packed_weight_bytes * decode_weight_bytes(self.spec, plan, max(1, round(num_sequences))) / whole

    def flops(self, num_tokens: float, num_attended: float) -> float:
        """Return the FLOPs of `num_tokens` tokens that attend to `num_attended` keys in all.

        2 for each weight, and 4 for each key, head and dimension (scores and values).
        """
        spec = self.spec
        full = sum(spec.layer_type(layer) != "linear" for layer in range(spec.num_hidden_layers))
        attention = 4.0 * full * spec.num_attention_heads * spec.head_dim * num_attended
        return 2.0 * num_multiplied_parameters(spec) * num_tokens + attention
