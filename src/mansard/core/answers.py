"""Taking in an executor's answers: what is wrong with them, what is new in them, and what ends a sequence.

Speculation may answer several tokens at once; those after the first stop are dropped, so that a sequence
never emits past its end.
"""

from __future__ import annotations

from mansard.core.types import FinishReason, ScheduledSequence, Sequence, SequenceResult, TokenLogprobs


def accept(
    sequence: Sequence, token_ids: tuple[int, ...], eos_token_ids: frozenset[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append sampled tokens up to the one that ends `sequence`; return those and why it ended, if it did.

    EOS and stop tokens count from the `min_tokens`-th output token on; `max_length` always holds.
    """
    params = sequence.request.params
    known = sequence.token_ids
    for count, token_id in enumerate(token_ids, 1):
        known.append(token_id)
        is_stop = token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos)
        if is_stop and sequence.num_output_tokens > params.min_tokens:
            return token_ids[:count], FinishReason.STOP
        if len(known) >= sequence.max_length:
            return token_ids[:count], FinishReason.LENGTH
    return token_ids, None


def fault(scheduled: ScheduledSequence, answer: SequenceResult) -> str | None:
    """Say why a sequence cannot go on after `answer`, if so."""
    if answer.error is not None:
        return answer.error
    if len(answer.token_ids) > scheduled.num_logits:
        return f"the executor sampled {len(answer.token_ids)} tokens from {scheduled.num_logits} logits"
    if scheduled.num_logits and not answer.token_ids:
        return f"the executor sampled no token from {scheduled.num_logits} logits"
    return None


def fresh_prompt_logprobs(
    sequence: Sequence, scheduled: ScheduledSequence, answer: SequenceResult
) -> tuple[TokenLogprobs, ...]:
    """Return the prompt's log-probabilities not handed out before: a preempted prompt is computed again.

    Entry j scores position start + 1 + j, so that those handed out are of positions 1, 2, … in order.
    """
    fresh = answer.prompt_logprobs[max(0, sequence.num_prompt_logprobs - scheduled.start) :]
    sequence.num_prompt_logprobs += len(fresh)
    return fresh
