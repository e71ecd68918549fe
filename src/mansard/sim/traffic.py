"""Traffic: where requests come from while a simulation runs.

An open loop's requests come whatever the system does. In a closed loop each of N users sends the next request when the
last has ended; in a chat the next turn continues the conversation. The simulation asks `follow_up` whenever a request
ends, so that all three are driven by one loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mansard.sim.planned import PlannedRequest, Run, TokenIds


class Traffic(Protocol):
    """A source of requests."""

    @property
    def reacts(self) -> bool:
        """Say whether requests follow upon the end of others."""
        ...

    @property
    def num_requests(self) -> int:
        """Return how many requests will come in all."""
        ...

    def first(self) -> Sequence[PlannedRequest]:
        """Return the requests whose arrival is known from the start."""
        ...

    def follow_up(self, ended: PlannedRequest, now: float) -> PlannedRequest | None:
        """Return what comes because `ended` has ended at `now`."""
        ...

    def longest(self) -> int:
        """Return the most tokens (prompt and output) that one request may have."""
        ...


class OpenLoop:
    """Requests at times of their own."""

    reacts = False

    def __init__(self, requests: Iterable[PlannedRequest]) -> None:
        self.requests = list(requests)

    @property
    def num_requests(self) -> int:
        """Return how many requests will come."""
        return len(self.requests)

    def first(self) -> Sequence[PlannedRequest]:
        """Return all requests."""
        return self.requests

    def follow_up(self, ended: PlannedRequest, now: float) -> PlannedRequest | None:
        """Return nothing: nobody waits for answers."""
        return None

    def longest(self) -> int:
        """Return the most tokens of one request."""
        return longest(self.requests)


class ClosedLoop:
    """N users: each sends a request, waits for its end, thinks, and sends the next one of the list.

    All users begin at once, as load generators do, unless `ramp_s` spreads their beginnings.
    """

    reacts = True

    def __init__(
        self, requests: Iterable[PlannedRequest], num_users: int, think_s: float = 0.0, ramp_s: float = 0.0
    ) -> None:
        if num_users < 1 or think_s < 0.0 or ramp_s < 0.0:
            raise ValueError(
                f"{num_users} users with {think_s} s to think and a ramp of {ramp_s} s: there must be at least one "
                "user, and times of at least 0"
            )
        self.requests = list(requests)
        self._num_users, self._think_s, self._ramp_s = num_users, think_s, ramp_s
        self._rest: deque[PlannedRequest] = deque()

    @property
    def num_requests(self) -> int:
        """Return how many requests will come."""
        return len(self.requests)

    def first(self) -> Sequence[PlannedRequest]:
        """Return each user's first request; starts over."""
        begin = min(self._num_users, len(self.requests))
        self._rest = deque(self.requests[begin:])
        gap = self._ramp_s / self._num_users
        return [replace(r, arrival_s=i * gap) for i, r in enumerate(self.requests[:begin])]

    def follow_up(self, ended: PlannedRequest, now: float) -> PlannedRequest | None:
        """Return the user's next request."""
        if not self._rest:
            return None
        return replace(self._rest.popleft(), arrival_s=now + self._think_s)

    def longest(self) -> int:
        """Return the most tokens of one request."""
        return longest(self.requests)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user adds to a conversation, and how long the answer is. Units: tokens, seconds."""

    num_user_tokens: int
    num_output_tokens: int
    think_s: float = 0.0  # before it is sent, from the end of the last answer on


class Chats:
    """Conversations: every turn's prompt is the whole conversation so far and what the user adds.

    starts: when each begins. system: runs that all of them begin with (a shared system prompt).
    """

    reacts = True

    def __init__(
        self,
        starts: Sequence[float],
        turns: Sequence[Sequence[Turn]],
        system: tuple[Run, ...] = (),
        ids: TokenIds | None = None,
    ) -> None:
        self._starts, self._turns, self._system = starts, turns, system
        self._ids = ids or TokenIds()
        self._num_done: dict[str, int] = {}

    @property
    def num_requests(self) -> int:
        """Return how many turns there are."""
        return sum(len(turns) for turns in self._turns)

    def first(self) -> Sequence[PlannedRequest]:
        """Return the first turn of each conversation; starts over."""
        self._num_done = {}
        found = []
        for chat, (start, turns) in enumerate(zip(self._starts, self._turns, strict=True)):
            if turns:
                found.append(self._planned(str(chat), 0, start, self._system, turns[0]))
        return found

    def follow_up(self, ended: PlannedRequest, now: float) -> PlannedRequest | None:
        """Return the conversation's next turn."""
        assert ended.session is not None
        number = self._num_done[ended.session] = self._num_done.get(ended.session, 0) + 1
        turns = self._turns[int(ended.session)]
        if number >= len(turns):
            return None
        turn = turns[number]
        return self._planned(ended.session, number, now + turn.think_s, ended.history(), turn)

    def longest(self) -> int:
        """Return the most tokens of one conversation."""
        system = sum(length for _, length in self._system)
        return max((system + sum(t.num_user_tokens + t.num_output_tokens for t in ts) for ts in self._turns), default=1)

    def _planned(self, chat: str, number: int, at: float, before: tuple[Run, ...], turn: Turn) -> PlannedRequest:
        prompt = (*before, (self._ids.fresh(), turn.num_user_tokens))
        return PlannedRequest(f"{chat}.{number}", at, prompt, turn.num_output_tokens, self._ids.fresh(), session=chat)


def longest(requests: Iterable[PlannedRequest]) -> int:
    """Return the most tokens, prompt and output, of one request; 1 when there is none."""
    return max((r.num_prompt_tokens + r.num_output_tokens for r in requests), default=1)
