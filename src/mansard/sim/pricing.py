"""StepPricer: the cost model's price of a step, prepared so that a simulation can ask a million times.

A step's price is a sum, and its parts depend on few numbers: all ops but attention on the tokens T that pass through
the layers and the sequences S (`rest`), decode attention on the number of decodes and their summed contexts, prefill
attention on the chunks. `rest` is tabulated for every T and S, decode attention as pieces between which the cost model
is linear; prefill attention (and linear attention beside a prompt) is asked for each time. The result equals
`PricedProgram.time` to rounding: a test holds that for every kind of model, and a program for which it does not hold is
noticed at the start and priced step by step.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mansard.cost.roofline import PricedProgram, StepCost
from mansard.cost.shape import StepShape
from mansard.program.ops import Attention, LatentAttention, LinearAttention

Chunk = tuple[int, int]  # (tokens, start) of a prompt's part
Limit = int | None  # the most keys a query sees in a kind of layer: its window; None sees all
_ASKED = ("decode_attention", "prefill_attention", "linear_attention")
_KNOTS = 9  # contexts at which decode attention is asked for at first
_TOLERANCE = 1e-12  # of linearity between two knots
_MAX_CONTEXT = 1 << 21
_PROBES: tuple[tuple[tuple[int, ...], tuple[Chunk, ...]], ...] = (
    ((900, 17, 5000), ()),
    ((), ((700, 300), (90, 0))),
    ((4000, 40), ((1000, 0), (10, 2000))),
    ((60,), ((1300, 0),)),
)
_PROBE_TOKENS = 2048  # more than any probe has


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A function that is linear between rising knots, and beyond the last."""

    knots: list[float]
    values: list[float]
    slopes: list[float]

    def at(self, x: float) -> float:
        """Return the value at `x`."""
        i = bisect_right(self.knots, x) - 1 if len(self.knots) > 1 else 0
        return self.values[i] + self.slopes[i] * (x - self.knots[i])


class StepPricer:
    """Prices steps of up to `max_tokens` tokens; see `step_s` and `decode_s`."""

    def __init__(self, priced: PricedProgram, max_tokens: int) -> None:
        self.priced = priced
        self.mixes_prefill = priced.profile.engine.mixes_prefill
        ops = [op for op, _ in priced.groups]
        self._by_limit = {limit: _only(priced, limit) for limit in map(limit_of, ops) if limit != 0}
        self._linear = _linear_only(priced)
        self.limits: tuple[Limit, ...] = tuple(self._by_limit)  # in the order of the program
        self._pieces: list[dict[int, _Pieces]] = [{} for _ in self.limits]
        self._tokens_s: list[float] = []
        self._decodes_s: list[float] = []
        self._mixed_s: list[float] = []
        self._fresh_prompt_s: list[float] = []  # attention of one chunk of T tokens at a prompt's beginning
        self._tabulate(max(max_tokens, _PROBE_TOKENS))
        self.is_tabled = True
        self.is_tabled = all(self._separates(*probe) for probe in _PROBES)

    def step_s(self, contexts: Sequence[int], chunks: Sequence[Chunk]) -> float:
        """Return how long a step with these decode contexts and prompt chunks takes. Units: seconds."""
        if not contexts and not chunks:  # a prompt's KV came from elsewhere and is not complete yet
            return self.priced.profile.engine.step_overhead_s
        if not chunks:
            return self.decode_s(len(contexts), self.key_counts(contexts))
        if not self.is_tabled:
            return self._asked_s(contexts, chunks)
        num_tokens, num_chunks = sum(n for n, _ in chunks), len(chunks)
        attention = self._prompt_attention_s(len(contexts) if self.mixes_prefill else 0, chunks)
        if not contexts:
            return self._tokens_s[num_tokens] + self._mixed_s[num_chunks] + attention
        if not self.mixes_prefill:
            alone = self._tokens_s[num_tokens] + self._mixed_s[num_chunks] + attention
            return alone + self.decode_s(len(contexts), self.key_counts(contexts))
        num_decodes = len(contexts)
        rest = self._tokens_s[num_tokens + num_decodes] + self._mixed_s[num_chunks + num_decodes]
        return rest + attention + self._decode_attention_s(num_decodes, self.key_counts(contexts))

    def decode_s(self, num_decodes: int, keys: Sequence[int]) -> float:
        """Return how long a step of decodes alone takes; `keys` are what `key_counts` says of their contexts."""
        if not self.is_tabled:
            shape = StepShape(num_decodes=float(num_decodes), decode_context=keys[-1] / num_decodes)
            return float(self.priced.time(shape))
        return self._tokens_s[num_decodes] + self._decodes_s[num_decodes] + self._decode_attention_s(num_decodes, keys)

    def key_counts(self, contexts: Sequence[int]) -> list[int]:
        """Return how many keys all decodes read together in each kind of layer, in the order of `limits`.

        Programs that are priced step by step have one entry, the sum of the contexts.
        """
        if not self.is_tabled:
            return [sum(contexts)]
        return [sum(contexts) if limit is None else sum(min(c, limit) for c in contexts) for limit in self.limits]

    def decode_prices(self, contexts: Sequence[int]) -> Callable[[], float]:
        """Return a function that prices, call by call, the coming steps in which each context grows by one.

        The n-th call returns exactly what `step_s` returns for the contexts plus n − 1.
        """
        num = len(contexts)
        if len(self.limits) == 1 and self.limits[0] is None and self.is_tabled:
            return self._plain_prices(num, sum(contexts))
        state = list(contexts)

        def priced() -> float:
            found = self.decode_s(num, self.key_counts(state))
            state[:] = [c + 1 for c in state]
            return found

        return priced

    def _plain_prices(self, num: int, total: int) -> Callable[[], float]:
        """Return the prices of growing contexts where all layers see everything."""
        base = self._tokens_s[num] + self._decodes_s[num]
        pieces, keys = self._decode_pieces(0, num), total - num
        at = pieces.at
        if len(pieces.knots) == 1:
            knot, value, slope = pieces.knots[0], pieces.values[0], pieces.slopes[0]

            def along_one_line() -> float:
                nonlocal keys
                keys += num
                return base + (value + slope * (keys - knot))

            return along_one_line

        def priced() -> float:
            nonlocal keys
            keys += num
            return base + at(keys)

        return priced

    # The three parts.

    def _decode_attention_s(self, num: int, keys: Sequence[int]) -> float:
        if len(keys) == 1:
            return self._decode_pieces(0, num).at(keys[0])
        return sum(self._decode_pieces(i, num).at(k) for i, k in enumerate(keys))

    def _prompt_attention_s(self, num_decodes: int, chunks: Sequence[Chunk]) -> float:
        """Return the time of the chunks' attention, and of all linear attention in a step with them."""
        if len(chunks) == 1 and chunks[0][1] == 0 and self._linear is None:
            return self._fresh_prompt_s[chunks[0][0]]
        shape = StepShape.of((), chunks)
        found = float(sum(_attention_s(part.step(shape), "prefill_attention") for part in self._by_limit.values()))
        if self._linear is None:
            return found
        mixed = replace(shape, num_decodes=float(num_decodes), decode_context=1.0)
        return found + _attention_s(self._linear.step(mixed), "linear_attention")

    def _asked_s(self, contexts: Sequence[int], chunks: Sequence[Chunk]) -> float:
        if contexts and chunks and not self.mixes_prefill:
            return self._asked_s(contexts, ()) + self._asked_s((), chunks)
        return float(self.priced.time(StepShape.of(contexts, chunks)))

    def _tabulate(self, max_tokens: int) -> None:
        """Tabulate a chunk of T tokens, and what S sequences and their logits add to it, with and without a prompt."""
        count = np.arange(1.0, max_tokens + 1.0)
        one = self.priced.step(StepShape(num_prefills=1.0 + 0.0 * count, prefill_tokens=count))
        many = self.priced.step(StepShape(num_decodes=count, decode_context=1.0))
        mixed = self.priced.step(
            StepShape(num_decodes=count - 1.0, decode_context=1.0, num_prefills=1.0 + 0.0 * count, prefill_tokens=1.0)
        )
        tokens = _rest(one, count)
        sequences = _rest(many, count) - tokens
        self._tokens_s = [0.0, *tokens.tolist()]
        linear = 0.0 * count + sum(op.time_s for op in many.ops if op.work.kind == "linear_attention")
        self._decodes_s = [0.0, *(sequences + linear + many.overhead_s).tolist()]
        fresh = sum(op.time_s for op in one.ops if op.work.kind == "prefill_attention")
        self._fresh_prompt_s = [0.0, *(0.0 * count + fresh).tolist()]
        self._mixed_s = [0.0, *(sequences + mixed.overhead_s).tolist()]

    def _separates(self, contexts: Sequence[int], chunks: Sequence[Chunk]) -> bool:
        """Say whether the tables give what the cost model says of one step."""
        asked = self._asked_s(contexts, chunks)
        return abs(self.step_s(contexts, chunks) - asked) <= 1e-9 * asked

    def _decode_pieces(self, index: int, num: int) -> _Pieces:
        known = self._pieces[index]
        if num not in known:
            known[num] = _linear_pieces(self._by_limit[self.limits[index]], num)
        return known[num]


def limit_of(op: object) -> Limit:
    """Return the most keys that a query of an op sees; 0 for an op that is no attention over keys."""
    if isinstance(op, Attention):
        return op.window if op.window is not None else op.chunk
    return None if isinstance(op, LatentAttention) else 0


def _only(priced: PricedProgram, limit: Limit) -> PricedProgram:
    """Return the program's attention ops with this limit alone."""
    part = copy.copy(priced)
    part.groups = tuple((op, n) for op, n in priced.groups if limit_of(op) == limit and limit_of(op) != 0)
    return part


def _linear_only(priced: PricedProgram) -> PricedProgram | None:
    """Return the program's linear attention alone, or None when it has none."""
    part = copy.copy(priced)
    part.groups = tuple((op, n) for op, n in priced.groups if isinstance(op, LinearAttention))
    return part if part.groups else None


def _rest(cost: StepCost, like: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up all ops but attention of any kind."""
    return like * 0.0 + sum(op.time_s for op in cost.ops if op.work.kind not in _ASKED)


def _attention_s(cost: StepCost, kind: str) -> float:
    return float(sum(op.time_s for op in cost.ops if op.work.kind == kind))


def _linear_pieces(part: PricedProgram, num: int) -> _Pieces:
    """Find the pieces of decode attention over the summed context of `num` sequences, by halving what is not linear."""

    def ask(keys: list[float]) -> list[float]:
        mean = np.array(keys) / num
        cost = part.step(StepShape(num_decodes=float(num) + 0.0 * mean, decode_context=mean))
        found = 0.0 * mean + sum(op.time_s for op in cost.ops if op.work.kind == "decode_attention")
        values: list[float] = found.tolist()
        return values

    most = min([_MAX_CONTEXT, *(x for x in map(limit_of, (op for op, _ in part.groups)) if x)])
    knots: list[float] = (float(num) * np.geomspace(1.0, most, _KNOTS).round()).tolist()
    known = dict(zip(knots, ask(knots), strict=True))
    open_ends = list(pairwise(knots))
    while open_ends:
        middles = [(a + b) / 2.0 for a, b in open_ends]
        values = ask(middles)
        halved: list[tuple[float, float]] = []
        for (a, b), middle, value in zip(open_ends, middles, values, strict=True):
            if abs(value - (known[a] + known[b]) / 2.0) > _TOLERANCE * value and b - a > 1.0:
                known[middle] = value
                halved += [(a, middle), (middle, b)]
        open_ends = halved
    return _merged(sorted(known.items()))


def _merged(points: list[tuple[float, float]]) -> _Pieces:
    """Join neighbouring pieces of one slope."""
    pieces = _Pieces([], [], [])
    for (x0, y0), (x1, y1) in pairwise(points):
        slope = (y1 - y0) / (x1 - x0)
        if pieces.slopes and abs(pieces.at(x1) - y1) <= 1e-11 * y1:
            continue
        pieces.knots.append(x0)
        pieces.values.append(y0)
        pieces.slopes.append(slope)
    return pieces
