"""Synthetic requests: lengths drawn from distributions, times from an arrival process, all from one seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.sim.arrivals import Arrivals
from mansard.sim.planned import PlannedRequest, Run, TokenIds
from mansard.sim.traffic import Chats, Turn
from mansard.specs.lengths import LengthDistribution
from mansard.specs.workload import Workload


def synthetic_requests(
    workload: Workload,
    arrivals: Arrivals,
    count: int,
    seed: int = 0,
    ids: TokenIds | None = None,
    num_priorities: int = 1,
) -> list[PlannedRequest]:
    """Return `count` requests of a workload. All prompts begin with its `shared_prefix_tokens`.

    num_priorities: above 1, each request gets one of so many priorities at random, 0 the most urgent.
    """
    random, ids = np.random.default_rng(seed), ids or TokenIds()
    times = arrivals.times(count, random)
    inputs = draw(workload.input_tokens, count, random)
    outputs = draw(workload.output_tokens, count, random)
    priorities = random.integers(0, num_priorities, count)
    shared = ids.fresh()
    return [
        PlannedRequest(
            str(i), float(times[i]), _prompt(inputs[i], workload.shared_prefix_tokens, shared, ids.fresh()),
            outputs[i], ids.fresh(), int(priorities[i]),
        )
        for i in range(count)
    ]  # fmt: skip


def synthetic_chats(
    workload: Workload,
    arrivals: Arrivals,
    num_chats: int,
    num_turns: int,
    think_s: float = 10.0,
    seed: int = 0,
) -> Chats:
    """Return conversations of `num_turns` turns, each adding a message and an answer of the workload's lengths.

    All begin with the workload's `shared_prefix_tokens`; users think for an exponential time of mean `think_s`.

    Raises: ValueError for fewer than one turn.
    """
    if num_turns < 1:
        raise ValueError(f"conversations have {num_turns} turns; they must have at least 1")
    random, ids = np.random.default_rng(seed), TokenIds()
    starts = arrivals.times(num_chats, random).tolist()
    inputs = draw(workload.input_tokens, num_chats * num_turns, random)
    outputs = draw(workload.output_tokens, num_chats * num_turns, random)
    thinking = random.exponential(think_s, num_chats * num_turns).tolist() if think_s else [0.0] * len(inputs)
    turns = [Turn(*values) for values in zip(inputs, outputs, thinking, strict=True)]
    system = ((ids.fresh(), workload.shared_prefix_tokens),) if workload.shared_prefix_tokens else ()
    chats = [turns[i * num_turns : (i + 1) * num_turns] for i in range(num_chats)]
    return Chats(starts, chats, system, ids)


def draw(lengths: LengthDistribution, count: int, random: np.random.Generator) -> Sequence[int]:
    """Return `count` lengths, drawn by inverting the quantile function. Units: tokens."""
    probabilities, tokens = (np.array(column) for column in zip(*lengths.points, strict=True))
    logs = np.interp(random.random(count), probabilities, np.log(tokens))
    found: list[int] = np.maximum(1, np.rint(np.exp(logs))).astype(int).tolist()
    return found


def _prompt(length: int, num_shared: int, shared: int, own: int) -> tuple[Run, ...]:
    if not num_shared:
        return ((own, length),)
    return ((shared, num_shared), (own, max(1, length - num_shared)))
