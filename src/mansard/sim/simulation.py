"""simulate: traffic against a deployment, on virtual time.

One loop of events: a request arrives or ends, or a replica takes its next step or stretch. Time never runs backwards:
a replica is only advanced to where no other event can reach it from the past, and ends are told in the order of their
times, so the order in which replicas are computed changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from mansard.core.config import SchedulerConfig
from mansard.sim.deployment import DECODES_PER_STEP, Deployment
from mansard.sim.outcome import ReplicaOutcome, RequestOutcome, SimulationResult
from mansard.sim.planned import PlannedRequest
from mansard.sim.pricing import StepPricer
from mansard.sim.replica import Ended, Replica
from mansard.sim.router import Router, make_router
from mansard.sim.traffic import Traffic

_END, _ARRIVAL = 0, 1  # what happens first at the same moment
_Event = tuple[float, int, int, int, PlannedRequest | Ended]  # (time, kind, lane or order, index or pool, what)

Progress = Callable[[int, float], None]  # (requests ended, virtual time)


def simulate(
    traffic: Traffic,
    deployment: Deployment,
    config: SchedulerConfig,
    *,
    router: str = "round-robin",
    fast: bool = True,
    progress: Progress | None = None,
) -> SimulationResult:
    """Return what `traffic` meets on `deployment` under `config`.

    fast: take stretches of decode steps at once; the result is the same. progress: called as requests end.

    Raises: ValueError when the model does not fit or the router is unknown.
    """
    return _Simulation(traffic, deployment, config, router, fast, progress).run()


class _Pool:
    """Replicas among which a router chooses; the lanes of one replica share their load evenly."""

    def __init__(self, name: str, lanes: list[Replica], router: Router) -> None:
        self.name, self.lanes, self.router = name, lanes, router

    def route(self, planned: PlannedRequest) -> Replica:
        return self.lanes[self.router(planned, self.lanes) if len(self.lanes) > 1 else 0]


class _Simulation:
    """The state of one run."""

    def __init__(
        self,
        traffic: Traffic,
        deployment: Deployment,
        config: SchedulerConfig,
        router: str,
        fast: bool,
        progress: Progress | None,
    ) -> None:
        self.traffic, self.deployment, self.config, self.router = traffic, deployment, config, router
        self.progress = progress
        self.delay_s = deployment.admission_delay_s
        self.pools = _build_pools(deployment, config, router, fast)
        self.lanes = [lane for pool in self.pools for lane in pool.lanes]
        self.number = {id(lane): i for i, lane in enumerate(self.lanes)}
        self.outcomes: list[RequestOutcome] = []
        self.prefilled: dict[str, RequestOutcome] = {}  # requests between a prefill and a decode replica
        self.originals: dict[str, PlannedRequest] = {}
        self.events: list[_Event] = []  # a heap
        self.num_arrivals = 0
        self.reacts = traffic.reacts or len(self.pools) > 1

    def run(self) -> SimulationResult:
        """Run until nothing is left to do."""
        first = self.traffic.first()
        self.events = [(p.arrival_s + self.delay_s, _ARRIVAL, i, 0, p) for i, p in enumerate(first)]
        self.num_arrivals = len(first)
        heapify(self.events)
        while self._next():
            pass
        assert not any(lane.num_unfinished for lane in self.lanes)
        names = [f"{pool.name} {i}" for pool in self.pools for i in range(len(pool.lanes))]
        lanes = tuple(_lane_outcome(n, lane) for n, lane in zip(names, self.lanes, strict=True))
        return SimulationResult(self.deployment, self.config, tuple(self.outcomes), lanes, self.router)

    def _next(self) -> bool:
        """Let the next thing happen; returns whether there was one."""
        next_s = self.events[0][0] if self.events else inf
        lane, step_s, limit_s = self._next_lane(next_s)
        if step_s < next_s:
            number = self.number[id(lane)]
            for index, ended in enumerate(lane.advance(limit_s)):
                heappush(self.events, (ended.end_s, _END, number, index, ended))
            return True
        if not self.events:
            return False
        _, _, number, pool, what = heappop(self.events)
        if isinstance(what, Ended):
            self._end(number, what)
        else:
            self._arrive(self.pools[pool], what, next_s)
        return True

    def _next_lane(self, next_s: float) -> tuple[Replica, float, float]:
        """Return the lane that is furthest behind, its next step, and how far it may go.

        Where requests follow upon ends, it may not pass the first time at which another lane could end one.
        """
        if len(self.lanes) == 1:
            return self.lanes[0], self.lanes[0].next_event_s(), next_s
        times = [lane.next_event_s() for lane in self.lanes]
        step_s = min(times)
        index = times.index(step_s)
        limit_s = next_s
        if self.reacts and step_s < next_s:
            others = [lane.earliest_end_s() for i, lane in enumerate(self.lanes) if i != index and times[i] < limit_s]
            # A lane level with this one must not keep it from its own next step.
            limit_s = max(min([limit_s, *others]), _just_after(step_s))
        return self.lanes[index], step_s, limit_s

    def _arrive(self, pool: _Pool, planned: PlannedRequest, now: float) -> None:
        lane = pool.route(planned)
        is_split = len(self.pools) > 1
        if is_split and pool is self.pools[0]:
            self.originals[planned.id] = planned
            planned = replace(planned, num_output_tokens=1)
        try:
            lane.add(planned, now, imported=is_split and pool is not self.pools[0])
        except ValueError as error:
            self._refuse(planned, self.number[id(lane)], str(error))

    def _refuse(self, planned: PlannedRequest, lane: int, error: str) -> None:
        at = planned.arrival_s
        self._finish(planned, RequestOutcome(
            planned.id, at, at, at, at, planned.num_prompt_tokens, 0, 0, 0, "refused", lane,
            planned.priority, planned.session, error,
        ))  # fmt: skip

    def _end(self, lane: int, ended: Ended) -> None:
        outcome = _outcome(ended, lane)
        planned = ended.planned
        if len(self.pools) > 1:
            before = self.prefilled.pop(planned.id, None)
            if before is not None:
                outcome = _joined(before, outcome)
            planned = self.originals[planned.id]
            if before is None and planned.num_output_tokens > 1:
                self.prefilled[planned.id] = outcome
                self._send(planned, ended.end_s)
                return
            del self.originals[planned.id]
        self._finish(planned, outcome)

    def _send(self, planned: PlannedRequest, now: float) -> None:
        """Send a computed prompt's KV to the decode replicas."""
        prompt = (*planned.prompt, (planned.output_token_id, 1))
        rest = replace(planned, prompt=prompt, num_output_tokens=planned.num_output_tokens - 1)
        self._push(now + self.deployment.transfer_s(planned.num_prompt_tokens), 1, rest)

    def _finish(self, planned: PlannedRequest, outcome: RequestOutcome) -> None:
        self.outcomes.append(outcome)
        if self.progress is not None:
            self.progress(len(self.outcomes), outcome.end_s)
        following = self.traffic.follow_up(planned, outcome.end_s)
        if following is not None:
            self._push(following.arrival_s + self.delay_s, 0, following)

    def _push(self, at: float, pool: int, planned: PlannedRequest) -> None:
        heappush(self.events, (at, _ARRIVAL, self.num_arrivals, pool, planned))
        self.num_arrivals += 1


def _build_pools(deployment: Deployment, config: SchedulerConfig, router: str, fast: bool) -> list[_Pool]:
    """Return the pool of replicas, or those of prefill and decode replicas."""
    num_blocks = deployment.blocks_per_lane(config)
    pricer = StepPricer(deployment.priced, config.max_num_batched_tokens)

    def pool(name: str, replicas: int, settings: SchedulerConfig) -> _Pool:
        lanes = [
            Replica(pricer, settings, num_blocks, deployment.block_size, fast)
            for _ in range(replicas * deployment.num_lanes)
        ]
        return _Pool(name, lanes, make_router(router))

    split = deployment.disaggregation
    if split is None:
        return [pool("replica", deployment.num_replicas, config)]
    # A decode replica takes a whole prompt's KV in one step: nothing of it is computed.
    room = max(config.max_num_batched_tokens, config.max_model_len + max(DECODES_PER_STEP, config.max_num_seqs))
    return [
        pool("prefill", split.num_prefill_replicas, config),
        pool("decode", split.num_decode_replicas, _importing(config, room)),
    ]


def _importing(config: SchedulerConfig, num_tokens: int) -> SchedulerConfig:
    """Return the configuration of a decode replica, whose steps hold `num_tokens`."""
    return replace(config, max_num_batched_tokens=num_tokens, long_prefill_token_threshold=None, min_decode_share=0.0)


def _just_after(time_s: float) -> float:
    """Return the least limit with which a step at `time_s` may begin."""
    return nextafter(time_s, inf)


def _outcome(ended: Ended, lane: int) -> RequestOutcome:
    planned, sequence = ended.planned, ended.sequence
    first = sequence.first_scheduled_s
    return RequestOutcome(
        planned.id, planned.arrival_s, ended.first_token_s if first is None else first, ended.first_token_s,
        ended.end_s, planned.num_prompt_tokens, sequence.num_output_tokens, sequence.num_cached_tokens,
        sequence.num_preemptions, ended.reason.value, lane, planned.priority, planned.session,
    )  # fmt: skip


def _joined(prefill: RequestOutcome, decode: RequestOutcome) -> RequestOutcome:
    """Return one outcome from those of a request's two halves."""
    return replace(
        prefill,
        end_s=decode.end_s,
        num_output_tokens=prefill.num_output_tokens + decode.num_output_tokens,
        num_preemptions=prefill.num_preemptions + decode.num_preemptions,
        reason=decode.reason,
        replica=decode.replica,
    )


def _lane_outcome(name: str, lane: Replica) -> ReplicaOutcome:
    stats = lane.engine.stats()
    return ReplicaOutcome(
        name, lane.timeline, stats.num_blocks, stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens,
        stats.num_preemptions, stats.num_evictions,
    )  # fmt: skip
