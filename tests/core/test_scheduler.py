"""The scheduler's policies and limits, each on a small case whose numbers can be followed by hand."""

import pytest
from toy_executor import World, expected_output

from mansard.core.config import SchedulerConfig
from mansard.core.types import FinishReason, Request, SamplingParams


def request(name: str, num_prompt: int, max_tokens: int = 5, priority: int = 0, **params) -> Request:
    """A greedy request whose prompt shares nothing with others of another name."""
    prompt = (sum(map(ord, name)) % 60 + 1, *[1] * (num_prompt - 1))
    fields = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | params
    return Request(name, prompt, SamplingParams(**fields), priority=priority)


def config(**fields) -> SchedulerConfig:
    defaults = {"max_num_batched_tokens": 16, "max_num_seqs": 8, "max_model_len": 100, "watermark": 0.0}
    return SchedulerConfig(**(defaults | fields))


def shapes(world: World) -> list[dict[str, int]]:
    """Per step, how many tokens each request computed."""
    return [{s.request.id: len(s.token_ids) for s in plan.sequences} for plan in world.executor.plans]


@pytest.mark.parametrize("caching", [True, False])
def test_two_requests_that_outgrow_the_pool_both_answer_in_full(caching):
    """Case B25: 7 blocks of 16, two requests of 34 + 35 tokens; one is preempted, undisturbed."""
    world = World(config(max_model_len=4096, enable_prefix_caching=caching), num_blocks=7, block_size=16)
    world.add(request("a", 34, 35), request("b", 34, 35))
    world.run().check_outputs()
    assert [len(world.tokens[s]) for s in ("a/0", "b/0")] == [35, 35]
    assert set(world.ends.values()) == {FinishReason.LENGTH}
    # 68 tokens with KV need 5 blocks each, 10 in all: the later one gives way, the earlier one never does.
    assert world.scheduler.num_preemptions >= 1
    assert all(s.start > 0 for p in world.executor.plans[3:] for s in p.sequences if s.request.id == "a")


def test_decodes_run_in_every_step_while_a_long_prompt_is_chunked():
    world = World(config(), 60)
    world.add(request("a", 3, 20), request("b", 2, 20))
    world.step()
    world.add(request("long", 50))
    for _ in range(5):
        world.step()
    assert shapes(world)[1:] == [{"a": 1, "b": 1, "long": n} for n in (14, 14, 14, 8, 1)]


def test_the_decode_share_bounds_prompts_only_beside_decodes():
    world = World(config(min_decode_share=0.75), 60)
    world.add(request("long", 20))
    world.step()
    world.step()
    assert shapes(world) == [{"long": 16}, {"long": 4}]
    world.add(request("next", 9))
    world.step()
    world.step()
    assert shapes(world)[2:] == [{"long": 1, "next": 4}, {"long": 1, "next": 4}]


def test_a_long_prompt_leaves_budget_to_others():
    world = World(config(long_prefill_token_threshold=10), 60)
    world.add(request("long", 30), request("b", 5))
    world.step()
    assert shapes(world) == [{"long": 10, "b": 5}]


def test_without_chunking_a_prompt_waits_until_it_fits_whole():
    world = World(config(enable_chunked_prefill=False, max_num_batched_tokens=100), 60)
    world.add(request("a", 60), request("b", 50), request("c", 3))
    world.step()
    world.step()
    assert shapes(world) == [{"a": 60}, {"a": 1, "b": 50, "c": 3}]  # in order: c does not overtake b


def test_a_prefix_hit_starts_ahead_and_is_counted():
    world = World(config(), 60)
    world.add(request("a", 11))
    world.run()
    prompt = world.requests["a"].prompt_token_ids
    world.add(Request("a2", prompt, SamplingParams(temperature=0, max_tokens=1)))
    outputs = world.step()
    assert shapes(world)[-1] == {"a2": 3}
    assert outputs[0].num_cached_tokens == 8
    stats = world.engine.stats()
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (22, 8)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block():
    world = World(config(), 60)
    for name in ("a", "b"):
        world.add(Request(name, (1,) * 12, SamplingParams(temperature=0, max_tokens=1)))
        world.run().check_outputs()
    assert shapes(world) == [{"a": 12}, {"b": 4}]


def test_a_prompt_to_be_scored_takes_no_hits():
    """Case B24: sent twice, the log-probabilities are whole both times."""
    world = World(config(max_num_batched_tokens=128, max_model_len=200), 60)
    for name, max_tokens in (("a", 0), ("b", 1)):
        scored = SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=0)
        world.add(Request(name, (2,) * 117, scored))
        world.run().check_outputs()
    assert shapes(world) == [{"a": 117}, {"b": 117}]
    assert world.logprobs["a/0"] == world.logprobs["b/0"] and len(world.logprobs["a/0"]) == 116
    assert world.ends["a/0"] is FinishReason.LENGTH and world.tokens["a/0"] == []


def test_priority_decides_who_starts_and_who_gives_way():
    world = World(config(enable_priority=True, max_num_seqs=2), num_blocks=8)
    world.add(request("low", 9, 9, priority=5))
    world.add(request("high", 9, 9, priority=-1), request("mid", 4, 1, priority=2))
    world.run().check_outputs()
    assert list(shapes(world)[0]) == ["high", "mid"]
    starts = [s.start for p in world.executor.plans for s in p.sequences if s.request.id == "high"]
    assert starts == sorted(set(starts))


def test_the_watermark_keeps_blocks_for_those_who_run():
    world = World(config(watermark=0.5), num_blocks=8)
    world.add(request("a", 16), request("b", 4))
    world.step()
    assert shapes(world) == [{"a": 16}]  # alone, a may take what it needs; b would leave less than half
    world.run().check_outputs()


def test_a_static_batch_runs_to_completion_before_the_next_starts():
    world = World(config(policy="static", batch_size=2), 60)
    world.add(request("a", 2, 2), request("b", 2, 4), request("c", 2, 1))
    world.run()
    assert [list(step) for step in shapes(world)] == [["a", "b"], ["a", "b"], ["b"], ["b"], ["c"]]


def test_a_static_batch_is_what_waited_when_it_formed():
    world = World(config(policy="static", batch_size=3), 60)
    world.add(request("a", 2, 3))
    world.step()
    world.add(request("b", 2, 1))
    world.run()
    assert [list(step) for step in shapes(world)] == [["a"], ["a"], ["a"], ["b"]]


def test_a_dynamic_batch_waits_for_its_window():
    world = World(config(policy="dynamic", batch_size=3, batch_window_s=5.0), 60)
    world.add(request("a", 2, 2))
    assert world.step() == [] and world.engine.next_wakeup() == 5.0
    world.clock.advance(2.0)
    world.add(request("b", 2, 1))
    assert world.step() == [] and world.engine.next_wakeup() == 5.0
    world.clock.advance(3.0)
    world.step()
    assert shapes(world) == [{"a": 2, "b": 2}]
    assert world.engine.next_wakeup() == world.clock.now()


def test_a_full_dynamic_batch_does_not_wait():
    world = World(config(policy="dynamic", batch_size=2, batch_window_s=1e9), 60)
    world.add(request("a", 2, 2))
    assert world.step() == []
    world.add(request("b", 2, 2))
    world.step()
    assert shapes(world) == [{"a": 2, "b": 2}]
    world.run()
    assert world.engine.next_wakeup() is None


def test_a_preempted_member_of_a_dynamic_batch_waits_for_no_second_window():
    world = World(config(policy="dynamic", batch_size=2, batch_window_s=1000.0), num_blocks=6)
    world.add(request("a", 7, 9), request("b", 7, 9))
    world.run().check_outputs()
    assert world.scheduler.num_preemptions > 0
    assert world.clock.now() < 100


def test_contiguous_reservation_admits_fewer_and_never_preempts():
    most = {}
    for reservation in ("contiguous", "paged"):
        fields = {"kv_reservation": reservation, "enable_prefix_caching": False, "max_model_len": 40}
        world = World(config(**fields), num_blocks=20)
        world.add(*(request(name, 4, 8) for name in "abcdef"))
        world.run().check_outputs()
        most[reservation] = max(len(plan.sequences) for plan in world.executor.plans)
        assert world.scheduler.num_preemptions == 0
    assert most == {"contiguous": 2, "paged": 6}  # 20 blocks: 10 for each as reserved, 3 as needed


def test_siblings_share_the_prompt_and_differ_in_what_they_say():
    world = World(config(max_num_batched_tokens=32), 60)
    params = SamplingParams(temperature=1, seed=1, max_tokens=6, ignore_eos=True, n=4)
    world.add(Request("a", (1,) * 10, params))
    world.step()
    world.step()
    assert [len(s.token_ids) for s in world.executor.plans[1].sequences] == [1, 1, 1, 1]
    assert world.blocks.num_used_blocks == 2 + 4  # two full blocks for all, the third for each
    world.run().check_outputs()
    assert len({tuple(world.tokens[f"a/{i}"]) for i in range(4)}) > 1


def test_siblings_beyond_the_slots_run_later():
    world = World(config(max_num_seqs=2), 60)
    world.add(Request("a", (1,) * 10, SamplingParams(temperature=1, seed=1, max_tokens=6, n=5)))
    world.run().check_outputs()


def test_siblings_go_on_when_the_first_one_fails():
    world = World(config(), 60)
    world.executor.before_step = lambda plan: {"a/0": "not finite"}
    world.add(Request("a", (1,) * 10, SamplingParams(temperature=1, max_tokens=6, n=3)))
    world.run().check_outputs()
    assert [i for i in range(3) if world.ends[f"a/{i}"] is FinishReason.ERROR] == [0]


def test_a_stop_inside_an_accepted_run_cuts_it():
    """Case B34: nothing is emitted past a stop token or max_tokens."""
    plain = request("a", 6, 10)
    answer = expected_output(plain, 0, 100)[0]

    class Oracle:
        def propose(self, sequences):
            return [answer[s.num_output_tokens : s.num_output_tokens + 8] for s in sequences]

    for stop, length in (((answer[3],), answer.index(answer[3]) + 1), ((), 10)):
        world = World(config(), 60, drafter=Oracle())
        world.add(request("a", 6, 10, stop_token_ids=stop))
        world.run().check_outputs()
        assert len(world.tokens["a/0"]) == length
        assert world.engine.stats().num_output_tokens == length
        assert len(world.executor.plans) <= 3


def test_drafts_preempt_nobody():
    class Wrong:
        def propose(self, sequences):
            return [[0] * 6 for _ in sequences]

    world = World(config(max_num_batched_tokens=64), num_blocks=6, drafter=Wrong())
    world.add(request("a", 7, 4), request("b", 7, 4))
    world.run().check_outputs()
    assert world.scheduler.num_preemptions == 0


def test_a_client_who_leaves_frees_its_blocks_at_once():
    """Case B21: running, queued and waiting for a fork, all at once."""
    world = World(config(max_num_seqs=2), 60)
    world.add(request("a", 30, 40, n=3), request("b", 4, 40), request("c", 4, 40))
    world.step()
    for name in "abc":
        world.record(world.engine.abort(name))
    assert not world.engine.has_unfinished()
    assert world.engine.stats().num_used_blocks == world.engine.stats().num_waiting == 0
    assert set(world.ends.values()) == {FinishReason.ABORT} and len(world.ends) == 5
    world.run()


def test_an_abort_while_the_step_runs_is_respected():
    world = World(config(), 60)
    world.add(request("a", 4), request("b", 4))

    def leave(plan):
        world.record(world.engine.abort("a"))
        world.engine.add(request("a", 7))  # the id may be used again at once
        return {}

    world.executor.before_step = leave
    outputs = world.step()
    assert [output.request_id for output in outputs] == ["b"]


def test_ten_thousand_requests_leave_nothing_behind():
    world = World(config(), 60)
    for number in range(10_000):
        world.engine.add(request(f"r{number}", 3, 1))
        if number % 3 == 0:
            world.engine.abort(f"r{number}")
    while world.engine.has_unfinished():
        world.engine.step()
    scheduler = world.scheduler
    assert not scheduler._sequences and not scheduler._requests and not scheduler._siblings
    assert not scheduler.running and len(scheduler.waiting) == 0
    assert world.blocks.num_free_blocks == 60
