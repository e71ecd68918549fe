"""Routers: which replica a request goes to, decided when it arrives.

Round robin knows nothing; least loaded sends to where the fewest requests are under way; prefix-aware prefers the
replica whose cache holds most of the prompt as long as it is not much busier than the others (the balance that
production routers strike between locality and load).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.core import types
from mansard.sim.planned import PlannedRequest
from mansard.sim.replica import ANY_LENGTH, Replica

Router = Callable[[PlannedRequest, Sequence[Replica]], int]

MIN_HIT_SHARE = 0.25  # of the prompt: below this a hit is not worth an imbalance
MAX_LOAD_RATIO = 1.5  # the prefix's replica may be this much busier than the least busy one,
MAX_LOAD_GAP = 8  # or have this many requests more


class RoundRobin:
    """Takes the replicas in turn."""

    def __init__(self) -> None:
        self._next = -1

    def __call__(self, planned: PlannedRequest, replicas: Sequence[Replica]) -> int:
        """Return the next replica."""
        self._next = (self._next + 1) % len(replicas)
        return self._next


def least_loaded(planned: PlannedRequest, replicas: Sequence[Replica]) -> int:
    """Return the replica with the fewest requests, the first of equals."""
    loads = [replica.num_unfinished for replica in replicas]
    return loads.index(min(loads))


def prefix_aware(planned: PlannedRequest, replicas: Sequence[Replica]) -> int:
    """Return the replica that holds the longest prefix, or the least loaded when that is far busier."""
    request = planned.request(ANY_LENGTH)
    probe = types.Sequence(request, token_ids=list(request.prompt_token_ids))
    hits = [len(r.engine.scheduler.blocks.match(probe)) * r.engine.scheduler.blocks.block_size for r in replicas]
    best = hits.index(max(hits))
    loads = [replica.num_unfinished for replica in replicas]
    lightest = loads.index(min(loads))
    is_balanced = loads[best] <= max(MAX_LOAD_RATIO * loads[lightest], loads[lightest] + MAX_LOAD_GAP)
    return best if hits[best] >= MIN_HIT_SHARE * len(probe.token_ids) and is_balanced else lightest


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": lambda: least_loaded,
    "prefix-aware": lambda: prefix_aware,
}


def make_router(name: str) -> Router:
    """Return a fresh router.

    Raises: ValueError for an unknown name.
    """
    if name not in ROUTERS:
        raise ValueError(f"unknown router {name!r}; choose one of {', '.join(ROUTERS)}")
    return ROUTERS[name]()
