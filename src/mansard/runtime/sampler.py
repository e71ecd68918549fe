"""The sampler: from a step's logits to each sequence's next tokens, in NumPy.

It keeps no state: what a row becomes depends on that row, the request and the position alone, never on the
rows beside it, so a batch, a preemption or a restart cannot change a seeded text. Drafts are verified in
the same pass. A draft proposed without a distribution is a point mass, for which the rule of speculative
sampling (Leviathan et al. 2023, arXiv 2211.17192: accept with probability p(draft), else draw from p
without the draft) is the same as drawing x from p and accepting when x is the draft. That form uses the
random number plain decoding would use, so the text with drafts is the text without them, at every
temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from mansard.core.types import (
    ScheduledSequence,
    SequenceResult,
    StepPlan,
    Structure,
    TokenLogprobs,
)
from mansard.runtime.logits_processors import RowContext, TokenMasks, changes_logits, process
from mansard.runtime.logprobs import FloatArray, IntArray, token_logprobs
from mansard.runtime.random_numbers import uniform
from mansard.runtime.token_filters import candidates

BoolArray = npt.NDArray[np.bool_]

NOT_FINITE = "the model's output is not finite (NaN or infinity in the logits)"
NOTHING_LEFT = "no token is left to choose: every one is forbidden (structure, logit_bias, min_tokens)"


class SamplingError(Exception):
    """A row from which no token can be chosen; ends its sequence, and no other."""


def num_logit_rows(scheduled: ScheduledSequence) -> int:
    """Return how many rows of logits the sampler wants: those of the last that many of the sequence's tokens.

    That is `num_logits`, or all of the step's tokens while prompt log-probabilities are being collected.
    """
    if _num_prompt_entries(scheduled) > 0:
        return len(scheduled.token_ids)
    return scheduled.num_logits


def row_offsets(plan: StepPlan) -> list[int]:
    """Return each sequence's first row when rows lie one sequence after the other, and the number of rows."""
    return list(accumulate((num_logit_rows(s) for s in plan.sequences), initial=0))


def _num_prompt_entries(scheduled: ScheduledSequence) -> int:
    """Return how many prompt tokens this step scores: positions start + 1 … end, within the prompt."""
    request = scheduled.request
    if request.params.prompt_logprobs is None:
        return 0
    end = scheduled.start + len(scheduled.token_ids)
    return max(0, min(end, len(request.prompt_token_ids) - 1) - scheduled.start)


class Sampler:
    """Chooses tokens for a model of `vocab_size` tokens; `eos_token_ids` are what `min_tokens` holds back.

    masks: says which tokens a structured output may go on with; without it such requests fail.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int] = (), masks: TokenMasks | None = None) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self._masks = masks

    def sample(self, plan: StepPlan, logits: FloatArray, offsets: Sequence[int] | None = None) -> list[SequenceResult]:
        """Return each sequence's result, in the plan's order.

        Shapes: logits: [R, ≥ V] float32, not changed; offsets: first row of each sequence (default
        `row_offsets`).
        """
        rows = logits[:, : self.vocab_size]
        offsets = row_offsets(plan) if offsets is None else offsets
        greedy = rows.argmax(axis=1) if rows.shape[0] else np.zeros(0, np.int64)
        finite = np.isfinite(rows[np.arange(rows.shape[0]), greedy])  # argmax finds NaN and +inf first
        return [
            self._sequence(scheduled, rows[first:], greedy[first:], finite[first:])
            for scheduled, first in zip(plan.sequences, offsets, strict=False)
        ]

    def _sequence(
        self,
        scheduled: ScheduledSequence,
        rows: FloatArray,
        greedy: IntArray,
        finite: BoolArray,
    ) -> SequenceResult:
        num_rows = num_logit_rows(scheduled)
        try:
            scored = self._score_prompt(scheduled, rows, finite)
            first = num_rows - scheduled.num_logits
            span = slice(first, num_rows)
            tokens = self._tokens(scheduled, rows[span], greedy[span], finite[span])
        except SamplingError as error:
            return SequenceResult(error=str(error))
        wanted = scheduled.request.params.logprobs
        if wanted is None:
            return SequenceResult(tuple(tokens), (), scored)
        chosen = tuple(token_logprobs(rows[first + i], t, wanted) for i, t in enumerate(tokens))
        return SequenceResult(tuple(tokens), chosen, scored)

    def _tokens(
        self,
        scheduled: ScheduledSequence,
        rows: FloatArray,
        greedy: IntArray,
        finite: BoolArray,
    ) -> list[int]:
        """Choose a token per row for as long as the draft before it was right."""
        drafts = scheduled.token_ids[len(scheduled.token_ids) - scheduled.num_draft_tokens :]
        tokens: list[int] = []
        for i in range(scheduled.num_logits):
            if not finite[i]:
                raise SamplingError(NOT_FINITE)
            token = self._token(scheduled, rows[i], int(greedy[i]), drafts[:i])
            tokens.append(token)
            if i < len(drafts) and token != drafts[i]:
                break
        return tokens

    def _token(self, scheduled: ScheduledSequence, row: FloatArray, greedy: int, drafts: tuple[int, ...]) -> int:
        """Choose the token that follows the known tokens and `drafts`."""
        request = scheduled.request
        params = request.params
        processed = changes_logits(params)
        if processed:
            row = self._processed(scheduled, row, drafts)
        if params.temperature == 0.0:
            return int(row.argmax()) if processed else greedy
        seed = request.default_seed if params.seed is None else params.seed
        position = _num_known(scheduled) + len(drafts)
        return candidates(row, params).draw(uniform(seed, scheduled.index, position))

    def _processed(self, scheduled: ScheduledSequence, row: FloatArray, drafts: tuple[int, ...]) -> FloatArray:
        params = scheduled.request.params
        known = (*scheduled.history[: _num_known(scheduled)], *drafts)
        context = RowContext(params, known, len(scheduled.request.prompt_token_ids), self.eos_token_ids)
        row = row.astype(np.float32, copy=True)
        process(row, context)
        if params.structure is not None:
            row[~self._allowed(scheduled.sequence_id, params.structure, context)] = -np.inf
        if not np.isfinite(row.max()):
            raise SamplingError(NOTHING_LEFT)
        return row

    def _allowed(self, sequence_id: str, structure: Structure, context: RowContext) -> BoolArray:
        """Return which tokens a structured output may go on with; never all of them for want of an answer."""
        if self._masks is None:
            raise SamplingError("this executor cannot constrain an output to a structure")
        try:
            mask = self._masks.allowed(sequence_id, structure, context.token_ids[context.num_prompt_tokens :])
        except ValueError as error:
            raise SamplingError(str(error)) from error
        return mask[: self.vocab_size]

    def _score_prompt(
        self,
        scheduled: ScheduledSequence,
        rows: FloatArray,
        finite: BoolArray,
    ) -> tuple[TokenLogprobs, ...]:
        """Score the prompt tokens that follow this step's tokens."""
        count = _num_prompt_entries(scheduled)
        if count == 0:
            return ()
        if not finite[:count].all():
            raise SamplingError(NOT_FINITE)
        wanted = scheduled.request.params.prompt_logprobs or 0
        targets = scheduled.request.prompt_token_ids[scheduled.start + 1 : scheduled.start + 1 + count]
        return tuple(token_logprobs(rows[i], t, wanted) for i, t in enumerate(targets))


def _num_known(scheduled: ScheduledSequence) -> int:
    """Return how many tokens are known when this step samples: those before the drafts."""
    return scheduled.start + len(scheduled.token_ids) - scheduled.num_draft_tokens
