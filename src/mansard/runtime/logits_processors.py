"""What changes a row of logits before a token is chosen: bias, the minimum length and the three penalties.

Each processor works in place on a private copy of one row. The order is vLLM's: `min_tokens` and
`logit_bias`, then the penalties; temperature and the filters (min_p, top_k, top_p) belong to the sampler.
Penalties follow CTRL (arXiv 1909.05858) for repetition, and OpenAI's API for presence and frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mansard.core.types import SamplingParams, Structure
from mansard.runtime.logprobs import FloatArray, IntArray


class TokenMasks(Protocol):
    """Says how a structured output may go on: a function of its arguments, whatever it remembers between calls."""

    def allowed(self, sequence_id: str, structure: Structure, output_ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return [≥ V] which tokens may follow `output_ids`; ValueError when that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class RowContext:
    """What is known when a row is processed: all tokens before the one to choose, and where the prompt
    ends.
    """

    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int
    eos_token_ids: tuple[int, ...]

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated before this one."""
        return len(self.token_ids) - self.num_prompt_tokens


def changes_logits(params: SamplingParams) -> bool:
    """Say whether any processor could apply under `params`; if not, a greedy row is one argmax."""
    return bool(
        params.logit_bias
        or params.min_tokens > 0
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.structure is not None
    )


def process(row: FloatArray, context: RowContext) -> None:
    """Apply every processor that `context.params` asks for to `row`, in place. Shapes: row: [V] float32."""
    _apply_min_tokens(row, context)
    _apply_logit_bias(row, context.params)
    _apply_repetition_penalty(row, context)
    _apply_output_penalties(row, context)


def _apply_min_tokens(row: FloatArray, context: RowContext) -> None:
    """Forbid what would end the sequence until it has `min_tokens` output tokens."""
    params = context.params
    if context.num_output_tokens >= params.min_tokens:
        return
    ending = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *context.eos_token_ids)
    ids = [i for i in ending if 0 <= i < row.shape[0]]
    row[ids] = -np.inf


def _apply_logit_bias(row: FloatArray, params: SamplingParams) -> None:
    for token_id, bias in params.logit_bias.items():
        if 0 <= token_id < row.shape[0]:
            row[token_id] += np.float32(bias)


def _apply_repetition_penalty(row: FloatArray, context: RowContext) -> None:
    """Divide positive logits of tokens seen in prompt or output by the penalty, multiply negative ones."""
    penalty = np.float32(context.params.repetition_penalty)
    if penalty == 1.0 or not context.token_ids:
        return
    ids = _in_vocabulary(np.unique(np.asarray(context.token_ids, np.int64)), row)
    seen = row[ids]
    row[ids] = np.where(seen > 0, seen / penalty, seen * penalty)


def _apply_output_penalties(row: FloatArray, context: RowContext) -> None:
    """Subtract presence_penalty once and frequency_penalty per occurrence from tokens in the output."""
    presence, frequency = context.params.presence_penalty, context.params.frequency_penalty
    if (presence == 0.0 and frequency == 0.0) or context.num_output_tokens <= 0:
        return
    output = np.asarray(context.token_ids[context.num_prompt_tokens :], np.int64)
    ids, counts = np.unique(_in_vocabulary(output, row), return_counts=True)
    row[ids] -= (presence + frequency * counts).astype(np.float32)


def _in_vocabulary(ids: IntArray, row: FloatArray) -> IntArray:
    kept: IntArray = ids[(ids >= 0) & (ids < row.shape[0])]
    return kept
