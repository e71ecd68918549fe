"""RequestOutcome and SimulationResult: what a simulation found, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.config import SchedulerConfig
from mansard.sim.deployment import Deployment
from mansard.sim.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request's life. Units: seconds of virtual time, tokens.

    reason: stop, length, or refused (then `error` says why and the times are those of its arrival). replica: where it
    decoded. num_output_tokens counts the EOS.
    """

    id: str
    arrival_s: float
    first_scheduled_s: float
    first_token_s: float
    end_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    reason: str
    replica: int = 0
    priority: int = 0
    session: str | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Return the time to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        """Return the time to the last token."""
        return self.end_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time of each token after the first; None with fewer than two."""
        if self.num_output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def is_served(self) -> bool:
        """Say whether it got an answer."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class ReplicaOutcome:
    """One lane's run: its steps, and counters."""

    name: str
    timeline: Timeline
    num_blocks: int
    num_prefix_query_tokens: int
    num_prefix_hit_tokens: int
    num_preemptions: int
    num_evictions: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """All requests in the order of their ends, and all lanes."""

    deployment: Deployment
    config: SchedulerConfig
    requests: tuple[RequestOutcome, ...]
    replicas: tuple[ReplicaOutcome, ...]
    router: str = "round-robin"

    @property
    def served(self) -> list[RequestOutcome]:
        """Return the requests that got an answer."""
        return [r for r in self.requests if r.is_served]

    @property
    def duration_s(self) -> float:
        """Return the time from the first arrival to the last end."""
        if not self.requests:
            return 0.0
        return max(r.end_s for r in self.requests) - min(r.arrival_s for r in self.requests)
