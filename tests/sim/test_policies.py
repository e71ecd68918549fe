"""What the textbook says of policies, caches, routers and disaggregation, seen in simulations of small loads."""

from dataclasses import replace

import pytest
from sim_scenes import small_deployment

from mansard.core.config import SchedulerConfig
from mansard.sim.arrivals import Arrivals
from mansard.sim.deployment import Deployment, Disaggregation
from mansard.sim.experiment import Experiment, TrafficPlan
from mansard.sim.planned import PlannedRequest, TokenIds
from mansard.sim.simulation import simulate
from mansard.sim.summary import summarize
from mansard.sim.sweep import highest_rate, run_all
from mansard.sim.synthetic import synthetic_requests
from mansard.sim.traffic import Chats, OpenLoop, Turn
from mansard.specs.hardware_catalogue import find_hardware
from mansard.specs.model_presets import preset
from mansard.specs.slo import Slo
from mansard.specs.workload import Workload, find_workload

LLAMA = Deployment(preset("llama-3.1-8b"), find_hardware("h100-sxm"))


def chat_load(count=150, rate=20.0):
    return OpenLoop(synthetic_requests(find_workload("chat"), Arrivals(rate_req_s=rate), count, seed=5))


def run(config_changes, traffic=None, deployment=LLAMA, **more):
    changes = {"max_num_batched_tokens": 4096, "max_num_seqs": 64, "enable_prefix_caching": False} | config_changes
    config = SchedulerConfig(max_model_len=16_384, **changes)
    return summarize(simulate(traffic or chat_load(), deployment, config, **more), Slo(ttft_s=1.0, tpot_s=0.05))


def test_continuous_beats_dynamic_and_static():
    continuous = run({})
    static, dynamic = (run({"policy": p, "batch_size": 32, "batch_window_s": w}) for p, w in
                       (("static", 0.0), ("dynamic", 0.05)))  # fmt: skip
    for batch in (static, dynamic):
        assert continuous.output_tokens_per_s > 1.3 * batch.output_tokens_per_s
        assert continuous.ttft_s.p50 < batch.ttft_s.p50 / 5.0
        assert continuous.goodput_req_s > 2.0 * batch.goodput_req_s


def test_paged_admits_more_than_contiguous():
    """PagedAttention's claim: 2 to 4 times as many sequences in the same memory; more with longer limits."""
    small = replace(LLAMA, num_kv_blocks=4 * 16_384 // 16)
    paged, contiguous = (
        run({"kv_reservation": kv, "watermark": 0.0}, deployment=small) for kv in ("paged", "contiguous")
    )
    assert contiguous.max_running == 4
    assert paged.max_running >= 2 * contiguous.max_running
    assert paged.ttft_s.p99 < contiguous.ttft_s.p99


def test_a_prefix_cache_saves_prompts_of_chats_and_changes_nothing_for_unrelated_prompts():
    turns = [[Turn(400, 50) for _ in range(4)] for _ in range(6)]
    with_cache, without = (run({"enable_prefix_caching": on}, Chats([0.1 * i for i in range(6)], turns, ((9, 800),)))
                           for on in (True, False))  # fmt: skip
    assert with_cache.prefix_hit_share > 0.7 and without.prefix_hit_share == 0.0
    assert with_cache.ttft_s.mean < without.ttft_s.mean
    alike = [run({"enable_prefix_caching": on}) for on in (True, False)]
    assert alike[0] == alike[1]


def test_mooncakes_hashes_hit_the_cache_as_published():
    """With a cache larger than the prompts, as many tokens hit as blocks repeat (those that came before alone)."""
    plan = TrafficPlan(trace="mooncake", count=300, rate_req_s=0.5)
    deployment = replace(LLAMA, num_kv_blocks=12_500, block_size=512)
    experiment = Experiment("", deployment, plan, {"max_num_batched_tokens": 131_072, "max_model_len": 131_072})
    seen, hits, total = set(), 0, 0
    for request in plan.build().first():
        for token_id, length in request.prompt:
            total, hits = total + length, hits + (length if token_id in seen else 0)
        seen.update(t for t, _ in request.prompt)
    assert experiment.summary().prefix_hit_share == pytest.approx(hits / total, abs=0.01)


def test_chunked_prefill_keeps_long_prompts_from_holding_up_tokens():
    ids = TokenIds()
    talk = [PlannedRequest(f"t{i}", 0.0, ((ids.fresh(), 50),), 200, ids.fresh()) for i in range(8)]
    long = [PlannedRequest(f"l{i}", 0.3 + 0.2 * i, ((ids.fresh(), 15_000),), 5, ids.fresh()) for i in range(4)]
    whole = run({"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384}, OpenLoop([*talk, *long]))
    chunked = run({"max_num_batched_tokens": 512}, OpenLoop([*talk, *long]))
    assert chunked.itl_s.max < whole.itl_s.max / 4.0


def test_priorities_decide_who_waits():
    workload = Workload.from_lengths(500, 200)
    requests = synthetic_requests(workload, Arrivals(rate_req_s=60.0), 200, seed=1, num_priorities=2)
    config = SchedulerConfig(
        max_num_batched_tokens=4096, max_num_seqs=16, max_model_len=1024, enable_prefix_caching=False,
        enable_priority=True,
    )  # fmt: skip
    result = simulate(OpenLoop(requests), LLAMA, config)
    urgent, patient = ([r.ttft_s for r in result.requests if r.priority == p] for p in (0, 1))
    assert sum(urgent) / len(urgent) < 0.5 * sum(patient) / len(patient)


def test_what_can_never_fit_is_refused_with_the_numbers():
    requests = [PlannedRequest("big", 0.0, ((1, 300),), 5, 2), PlannedRequest("small", 0.0, ((3, 10),), 5, 4)]
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=200)
    result = simulate(OpenLoop(requests), small_deployment(num_blocks=200), config)
    refused, served = sorted(result.requests, key=lambda r: r.reason)
    assert refused.reason == "refused" and "300" in (refused.error or "") and "200" in (refused.error or "")
    assert served.reason == "stop" and served.num_output_tokens == 5
    assert summarize(result).num_refused == 1


def test_replicas_share_the_load():
    one, four = (run({}, chat_load(300, 60.0), replace(LLAMA, num_replicas=n), router="least-loaded") for n in (1, 4))
    assert four.ttft_s.p99 < one.ttft_s.p99
    assert four.mean_running < one.mean_running / 2.0


def test_a_prefix_aware_router_hits_more():
    turns = [[Turn(600, 40, think_s=0.5) for _ in range(5)] for _ in range(15)]
    hits = {}
    for router in ("round-robin", "prefix-aware"):
        chats = Chats([0.05 * i for i in range(15)], turns)
        found = run({"enable_prefix_caching": True}, chats, replace(LLAMA, num_replicas=4), router=router)
        hits[router] = found.prefix_hit_share
    assert hits["prefix-aware"] > 1.3 * hits["round-robin"]


def test_disaggregation_shields_decodes_from_prompts_and_pays_for_the_transfer():
    together = run({}, chat_load(200, 30.0), replace(LLAMA, num_replicas=4))
    split = replace(LLAMA, disaggregation=Disaggregation(2, 2, bytes_per_s=50e9))
    apart = run({}, chat_load(200, 30.0), split)
    assert apart.itl_s.p99 < together.itl_s.p99 / 3.0
    slow = run({}, chat_load(200, 30.0), replace(split, disaggregation=Disaggregation(2, 2, bytes_per_s=1e8)))
    assert slow.e2e_s.mean > apart.e2e_s.mean + 0.5  # 1,155 tokens of 131 kB over 0.1 GB/s are 1.5 s
    assert slow.ttft_s.mean == pytest.approx(apart.ttft_s.mean)


def test_a_transfer_takes_bytes_over_the_link():
    deployment = replace(LLAMA, disaggregation=Disaggregation(1, 1, bytes_per_s=1e9, latency_s=0.01))
    # 32 layers × 2 × 8 heads × 128 × 2 bytes = 131,072 bytes a token
    assert deployment.transfer_s(1000) == pytest.approx(0.01 + 1000 * 131_072 / 1e9)


def test_lanes_of_a_replica_share_its_users():
    """Two pipeline stages are two micro-batches, each with half of the cache."""
    pipelined = small_deployment(num_blocks=64, pp=2)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64)
    assert pipelined.num_lanes == 2 and pipelined.blocks_per_lane(config) == 32


def test_a_model_that_does_not_fit_is_refused_with_the_reason():
    deployment = Deployment(preset("llama-3.1-70b"), find_hardware("h100-sxm"))
    with pytest.raises(ValueError, match="does not fit"):
        simulate(chat_load(3), deployment, deployment.scheduler_config(4096))


def test_the_highest_rate_meets_the_slo_and_a_higher_one_does_not():
    slo = Slo(ttft_s=0.3, tpot_s=0.03, percentile=90.0)
    experiment = Experiment("", LLAMA, TrafficPlan(workload="1000/50", count=80, seed=3), slo=slo)
    found = highest_rate(experiment, low=1.0, tolerance=0.05)
    assert found is not None
    rate, summary = found
    assert summary.meets(slo)
    assert not experiment.at_rate(rate * 1.1).summary().meets(slo)
    assert highest_rate(replace(experiment, slo=Slo(ttft_s=1e-4)), low=1.0) is None


def test_a_sweep_over_processes_gives_what_one_process_gives():
    base = Experiment("", LLAMA, TrafficPlan(workload="200/20", count=40))
    experiments = [base.at_rate(rate) for rate in (2.0, 20.0)]
    alone = [summary for _, summary in run_all(experiments)]
    spread = list(run_all(experiments, num_workers=2))
    assert [e.label for e, _ in spread] == ["2/s", "20/s"]
    assert [summary for _, summary in spread] == alone


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r"mansard\[ray\]"):
        list(run_all([Experiment("", LLAMA, TrafficPlan(workload="200/20", count=4))], ray_address="local"))


@pytest.mark.parametrize(
    ("plan", "message"),
    [({"rate_req_s": 1.0, "num_users": 2}, "not both"), ({"count": 0}, "at least 1")],
)
def test_contradictory_plans_are_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        TrafficPlan(**plan)


def test_a_trace_has_its_own_conversations():
    with pytest.raises(ValueError, match="hashes"):
        TrafficPlan(trace="mooncake", num_turns=3).build()
