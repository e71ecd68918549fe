"""Stretches: runs of steps whose plans are known without making them.

Between two events (a request comes, a prompt is computed, blocks run out) every step decodes one token of each running
sequence; in the last one, sequences may end. A simulation takes such a stretch at once; the scheduler is left exactly
as if it had stepped, but for which of the free blocks it took. A real run has no use for this, and the scheduler knows
nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mansard.core import types
from mansard.core.answers import accept
from mansard.core.block_manager import BlockManager
from mansard.core.scheduler import Scheduler
from mansard.core.types import SequenceOutput

_MANY_STEPS = 1 << 30


def num_quiet_steps(scheduler: Scheduler, now: float, outputs_are_new: bool = False, at_most: int | None = None) -> int:
    """Return how many next steps, `at_most` so many, decode one token of each running sequence and do nothing else.

    It holds while no request is added or ended from outside and no sampled token ends a sequence before the last of
    the steps. With a prefix cache and a sequence that waits for blocks, it also takes that no block to be generated
    is known already, for a known one is shared and frees its double: say so with `outputs_are_new`, or it is 0.
    """
    running, blocks = scheduler.running, scheduler.blocks
    if not running or (scheduler.waiting and not scheduler.admits_nobody(now, outputs_are_new)):
        return 0
    num_steps = _MANY_STEPS if at_most is None else at_most
    for sequence in running:
        num_known = len(sequence.token_ids)
        if num_known - sequence.num_computed_tokens != 1 or sequence.draft_token_ids:
            return 0
        if sequence.request.params.n > 1 and not _writes_alone(sequence, blocks):
            return 0
        if sequence.max_length - num_known < num_steps:
            num_steps = sequence.max_length - num_known
    return _fitting_steps(running, blocks, num_steps)


def skip(
    scheduler: Scheduler, num_steps: int, token_ids: Iterable[Sequence[int]], eos_token_ids: frozenset[int]
) -> list[SequenceOutput]:
    """Take `num_steps` ≥ 1 quiet steps at once; returns the whole stretch's output of each sequence that it ended.

    token_ids: each running sequence's next tokens, one per step, of which none but the last may end it.
    """
    blocks, outputs = scheduler.blocks, []
    size, is_caching = blocks.block_size, blocks.enable_prefix_caching
    for sequence in scheduler.running:
        end = sequence.num_computed_tokens + num_steps
        if end > len(sequence.block_ids) * size:
            had_room = blocks.extend(sequence, sequence.num_computed_tokens, end)
            assert had_room, "more steps than num_quiet_steps"
    for sequence, tokens in zip(list(scheduler.running), token_ids, strict=True):
        assert len(tokens) == num_steps
        known, last, reason = sequence.token_ids, tokens[-1], None
        if (
            last in eos_token_ids
            or sequence.request.params.stop_token_ids
            or len(known) + num_steps >= sequence.max_length
        ):
            known.extend(tokens[:-1])
            _, reason = accept(sequence, (last,), eos_token_ids)
        else:
            known.extend(tokens)
        sequence.num_computed_tokens += num_steps
        if is_caching and sequence.num_computed_tokens >= (sequence.num_registered_blocks + 1) * size:
            blocks.register(sequence)
        if reason is not None:
            scheduler.finish(sequence.id, reason)
            outputs.append(SequenceOutput(sequence, tuple(tokens), finish_reason=reason))
    return outputs


def _writes_alone(sequence: types.Sequence, blocks: BlockManager) -> bool:
    """Say whether one of several siblings writes into a block of its own, and has forked the others already.

    A sequence without siblings always does: prefix hits are full blocks, and it writes behind them.
    """
    index = sequence.num_computed_tokens // blocks.block_size
    is_shared = index < len(sequence.block_ids) and blocks.ref_count(sequence.block_ids[index]) > 1
    return sequence.num_output_tokens > 0 and not is_shared


def _fitting_steps(running: list[types.Sequence], blocks: BlockManager, num_steps: int) -> int:
    """Return how many of `num_steps` steps find free blocks, by bisection if it is not sure that all do."""
    if len(running) * blocks.blocks_for(num_steps) <= blocks.num_free_blocks:
        return num_steps

    def fit(steps: int) -> bool:
        num_new = 0
        for s in running:
            num_new += max(0, blocks.blocks_for(s.num_computed_tokens + steps) - len(s.block_ids))
        return num_new <= blocks.num_free_blocks

    low, high = 0, num_steps
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fit(middle) else (low, middle - 1)
    return low
