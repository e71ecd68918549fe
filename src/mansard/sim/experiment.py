"""Experiment: everything one simulation depends on, as a value that can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mansard.sim.arrivals import Arrivals, Kind
from mansard.sim.deployment import Deployment
from mansard.sim.outcome import SimulationResult
from mansard.sim.planned import PlannedRequest, TokenIds
from mansard.sim.simulation import Progress, simulate
from mansard.sim.summary import Summary, summarize
from mansard.sim.synthetic import synthetic_chats, synthetic_requests
from mansard.sim.trace import planned_requests, read_trace
from mansard.sim.traffic import ClosedLoop, OpenLoop, Traffic
from mansard.specs.slo import Slo
from mansard.specs.workload import find_workload, published_rate

DEFAULT_RATE_REQ_S = 1.0
MAX_DEFAULT_REQUESTS = 5000
MODEL_LEN_STEP = 256  # a chosen max_model_len is a multiple of it


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """What comes: a trace, or a named workload or lengths `PROMPT/OUTPUT`, at a rate or from users in a closed loop.

    count: requests, or turns in all when `num_turns` is above 1. rate_req_s=None keeps a trace's own pace. Units:
    seconds, requests per second, tokens.
    """

    trace: str | None = None
    workload: str = "chat"
    rate_req_s: float | None = None
    num_users: int | None = None
    count: int | None = None
    arrivals: Kind = "poisson"
    cv: float = 1.0
    period_s: float = 3600.0
    num_turns: int = 1
    think_s: float = 0.0
    shared_prefix_tokens: int = 0
    num_priorities: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_users is not None and self.rate_req_s is not None:
            raise ValueError("give a rate (open loop) or a number of users (closed loop), not both")
        if self.count is not None and self.count < 1:
            raise ValueError(f"the number of requests is {self.count}; it must be at least 1")

    def build(self) -> Traffic:
        """Return the traffic, the same for the same plan.

        Raises: ValueError when the trace or workload cannot be read.
        """
        if self.num_turns > 1:
            return self._chats()
        requests = self._requests()
        return OpenLoop(requests) if self.num_users is None else ClosedLoop(requests, self.num_users, self.think_s)

    @property
    def name(self) -> str:
        """Return the trace's or the workload's name."""
        return self.trace or self.workload

    def _requests(self) -> list[PlannedRequest]:
        if self.trace is not None:
            rows = read_trace(self.trace)
            count = self.count or min(len(rows), MAX_DEFAULT_REQUESTS)
            return planned_requests(rows, TokenIds(), self.rate_req_s, count)
        workload = replace(find_workload(self.workload), shared_prefix_tokens=self.shared_prefix_tokens)
        count = self.count or 1000
        return synthetic_requests(workload, self._arrivals(), count, self.seed, num_priorities=self.num_priorities)

    def _chats(self) -> Traffic:
        if self.trace is not None:
            raise ValueError("turns are for workloads; a trace's conversations are in its hashes")
        workload = replace(find_workload(self.workload), shared_prefix_tokens=self.shared_prefix_tokens)
        num_chats = max(1, (self.count or 1000) // self.num_turns)
        arrivals = replace(self._arrivals(), rate_req_s=self._rate() / self.num_turns)
        if self.num_users is not None:
            arrivals, num_chats = Arrivals("burst"), self.num_users
        return synthetic_chats(workload, arrivals, num_chats, self.num_turns, self.think_s, self.seed)

    def _rate(self) -> float:
        if self.rate_req_s is not None:
            return self.rate_req_s
        return (None if "/" in self.workload else published_rate(self.workload)) or DEFAULT_RATE_REQ_S

    def _arrivals(self) -> Arrivals:
        return Arrivals(self.arrivals, self._rate(), self.cv, self.period_s)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One simulation: a deployment, what comes, and how it is scheduled.

    settings: changes to the engine's default `SchedulerConfig`; None in them leaves a default. `max_model_len` left
    out is what the traffic needs, `enable_prefix_caching` left out is on when prompts can share anything.
    """

    label: str
    deployment: Deployment
    traffic: TrafficPlan
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    router: str = "round-robin"
    slo: Slo | None = None

    def at_rate(self, rate_req_s: float) -> Experiment:
        """Return the same experiment at another rate."""
        return replace(
            self, label=f"{rate_req_s:g}/s", traffic=replace(self.traffic, rate_req_s=rate_req_s, num_users=None)
        )

    def run(self, progress: Progress | None = None, fast: bool = True) -> SimulationResult:
        """Return what the simulation finds.

        Raises: ValueError when the model does not fit or a setting is out of range.
        """
        traffic = self.traffic.build()
        settings = dict(self.settings)
        length = settings.pop("max_model_len", None) or _model_len(traffic, self.deployment)
        if settings.get("enable_prefix_caching") is None:
            is_paged = settings.get("kv_reservation", "paged") == "paged"
            settings["enable_prefix_caching"] = is_paged and _shares_prefixes(traffic)
        config = self.deployment.scheduler_config(length, **settings)
        return simulate(traffic, self.deployment, config, router=self.router, fast=fast, progress=progress)

    def summary(self) -> Summary:
        """Return the simulation's summary alone, which is small enough to send."""
        return summarize(self.run(), self.slo)


def _model_len(traffic: Traffic, deployment: Deployment) -> int:
    """Return the context that the longest request needs, at most the model's."""
    needed = -(-traffic.longest() // MODEL_LEN_STEP) * MODEL_LEN_STEP
    return min(needed, deployment.spec.max_position_embeddings)


def _shares_prefixes(traffic: Traffic) -> bool:
    """Say whether any two requests begin with the same text, so that a prefix cache has something to find."""
    if not isinstance(traffic, OpenLoop | ClosedLoop):
        return True
    seen: set[int] = set()
    for request in traffic.requests:
        first = request.prompt[0][0]
        if first in seen:
            return True
        seen.add(first)
    return False
