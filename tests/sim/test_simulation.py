"""The laws of a simulation over hypothesis-made traffic: stretches equal steps, ends are complete, time is monotone."""

from collections import Counter

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sim_scenes import MAX_LEN, MODELS, configs, small_deployment, traffic

from mansard.sim.deployment import Disaggregation
from mansard.sim.simulation import simulate

ROUTERS = st.sampled_from(["round-robin", "least-loaded", "prefix-aware"])
DEPLOYMENTS = st.one_of(
    st.builds(small_deployment, st.sampled_from(MODELS), st.sampled_from([17, 20, 60])),
    st.builds(small_deployment, num_blocks=st.just(18), replicas=st.sampled_from([2, 3])),
    st.builds(small_deployment, num_blocks=st.just(36), pp=st.just(2)),
    st.builds(small_deployment, num_blocks=st.just(20), split=st.just(Disaggregation(1, 2, 1e9))),
)


def step_ends(result):
    return [list(lane.timeline.step_ends_s) for lane in result.replicas]


@settings(max_examples=120, deadline=None)
@given(traffic(), DEPLOYMENTS, configs(), ROUTERS)
def test_stretches_equal_steps_to_the_last_bit(traffic, deployment, config, router):
    """Every time stamp of every request and every step, compared without tolerance."""
    fast = simulate(traffic, deployment, config, router=router)
    slow = simulate(traffic, deployment, config, router=router, fast=False)
    by_id = {r.id: r for r in slow.requests}
    assert {r.id: r for r in fast.requests} == by_id
    assert step_ends(fast) == step_ends(slow)
    for ours, theirs in zip(fast.replicas, slow.replicas, strict=True):
        for name in ("num_gaps", "num_decodes", "num_running", "num_waiting", "num_prefill_tokens"):
            assert ours.timeline.by_step(name).tolist() == theirs.timeline.by_step(name).tolist(), name
        assert ours.num_preemptions == theirs.num_preemptions
        assert ours.num_prefix_hit_tokens == theirs.num_prefix_hit_tokens
    event(f"preempted: {any(lane.num_preemptions for lane in fast.replicas)}")
    event(f"took a stretch: {any(lane.timeline.column('num_steps').max(initial=0) > 1 for lane in fast.replicas)}")


@settings(max_examples=80, deadline=None)
@given(traffic(), DEPLOYMENTS, configs(), ROUTERS)
def test_every_request_ends_once_with_all_its_tokens(traffic, deployment, config, router):
    result = simulate(traffic, deployment, config, router=router)
    assert len(result.requests) == traffic.num_requests
    assert max(Counter(r.id for r in result.requests).values()) == 1
    for r in result.requests:
        if r.reason == "refused":
            assert r.error and r.num_prompt_tokens >= MAX_LEN
            continue
        assert r.arrival_s <= r.first_scheduled_s <= r.first_token_s <= r.end_s
        assert r.reason in ("stop", "length")
        assert 0 <= r.num_cached_tokens < r.num_prompt_tokens


@settings(max_examples=80, deadline=None)
@given(traffic(), DEPLOYMENTS, configs())
def test_time_is_monotone_and_gaps_add_up(traffic, deployment, config):
    """Σ ITL = Σ (E2E − TTFT): every second between two tokens is in exactly one gap."""
    result = simulate(traffic, deployment, config)
    for lane in result.replicas:
        assert (lane.timeline.durations_s() > 0.0).all()
        assert (np.diff(np.array(lane.timeline.step_ends_s)) > 0.0).all()
        starts = lane.timeline.column("start_s")
        ends = np.array(lane.timeline.step_ends_s)[np.cumsum(lane.timeline.column("num_steps").astype(int)) - 1]
        assert (starts[1:] >= ends[:-1]).all()
    if len(result.replicas) > 1 and deployment.disaggregation is not None:
        return  # the gap that the transfer makes lies between two replicas
    gaps = [lane.timeline.gaps_s() for lane in result.replicas]
    total = sum(float((g * c).sum()) for g, c in gaps)
    # Sums of at most a few thousand float64 below 100.
    assert abs(total - sum(r.end_s - r.first_token_s for r in result.served)) < 1e-9
    assert sum(float(c.sum()) for _, c in gaps) == sum(r.num_output_tokens - 1 for r in result.served)
