"""When a sequence ends: EOS, stop tokens and lengths.

Speculation may answer several tokens at once; those after the first stop are dropped, so that a sequence never emits
past its end.
"""

from __future__ import annotations

from mansard.core.types import FinishReason, Sequence


def accept(
    sequence: Sequence, token_ids: tuple[int, ...], eos_token_ids: frozenset[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append sampled tokens up to and with the one that ends `sequence`; return those and why it ended, if it did.

    EOS and stop tokens count from the `min_tokens`-th output token on; `max_length` always holds.
    """
    params = sequence.request.params
    known = sequence.token_ids
    num_before = len(known)
    first_stop = sequence.num_prompt_tokens + params.min_tokens
    for token_id in token_ids:
        known.append(token_id)
        if (
            (token_id in eos_token_ids and not params.ignore_eos) or token_id in params.stop_token_ids
        ) and len(known) > first_stop:
            return tuple(known[num_before:]), FinishReason.STOP
        if len(known) >= sequence.max_length:
            return tuple(known[num_before:]), FinishReason.LENGTH
    return token_ids, None
