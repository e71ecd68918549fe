"""The scheduler's laws over generated workloads, on a toy model whose output betrays any mistake.

`World` checks after every step: blocks conserved, counts match tables, computed ≤ known, budgets kept; and at
the end: every sequence ended exactly once, nothing is left behind, all blocks are free. `check_outputs` compares
each sequence with the model run alone, so one comparison holds chunked = unchunked, cached = uncached, preempted
= undisturbed, batched = alone, forked = separate and speculative = greedy.
"""

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from toy_executor import World, expected_output, prompt_logprob
from toy_executor import entry as kv_entry
from toy_workloads import MAX_LEN, configs, requests

from mansard.core.config import SchedulerConfig
from mansard.core.types import FinishReason

SETTINGS = settings(max_examples=100, deadline=None)


class Echo:
    """Drafts what the model will say, with a mistake now and then."""

    def __init__(self, max_length: int, wrong_every: int) -> None:
        self.max_length = max_length
        self.wrong_every = wrong_every

    def propose(self, sequences):
        return [self._drafts(sequence) for sequence in sequences]

    def _drafts(self, sequence):
        done = sequence.num_output_tokens
        endless = replace(sequence.request.params, max_tokens=None, ignore_eos=True, stop_token_ids=())
        request = replace(sequence.request, params=endless)
        drafts = expected_output(request, sequence.index, self.max_length)[0][done : done + 3]
        return [d + 1 if (done + i) % self.wrong_every == 0 else d for i, d in enumerate(drafts)]


def run_with_arrivals(world: World, arrivals, gaps) -> World:
    for request, gap in zip(arrivals, gaps, strict=False):
        world.add(request)
        for _ in range(gap):
            world.step()
    return world.run()


GAPS = st.lists(st.integers(0, 4), min_size=8, max_size=8)
POOLS = st.sampled_from([10, 12, 20, 60])  # blocks of 4: one whole sequence, to plenty


@SETTINGS
@given(configs(), requests(), GAPS, POOLS)
def test_every_sequence_answers_as_if_it_were_alone(config, arrivals, gaps, num_blocks):
    world = run_with_arrivals(World(config, num_blocks), arrivals, gaps)
    world.check_outputs()
    event(f"preempted: {world.scheduler.num_preemptions > 0}")
    event(f"prefix hits: {world.blocks.stats.num_hit_tokens > 0}")
    if config.kv_reservation == "contiguous":
        assert world.scheduler.num_preemptions == 0


@SETTINGS
@given(configs(), requests(), GAPS, POOLS, st.sampled_from([1, 2, 3, 1000]))
def test_speculation_is_lossless(config, arrivals, gaps, num_blocks, wrong_every):
    drafter = Echo(MAX_LEN, wrong_every)
    world = run_with_arrivals(World(config, num_blocks, drafter=drafter), arrivals, gaps)
    world.check_outputs()


@SETTINGS
@given(configs(), requests(prompt_logprobs=0), GAPS, POOLS)
def test_prompt_logprobs_are_whole_and_in_order(config, arrivals, gaps, num_blocks):
    """Case B24: neither a prefix hit, a chunk nor a preemption loses or repeats an entry."""
    world = run_with_arrivals(World(config, num_blocks), arrivals, gaps)
    for request in arrivals:
        states = []
        for token_id in request.prompt_token_ids:
            states.append(kv_entry(states, token_id))
        expected = [prompt_logprob(state) for state in states[:-1]]
        assert world.logprobs[f"{request.id}/0"] == expected


@SETTINGS
@given(configs(), requests(), GAPS, POOLS, st.data())
def test_whatever_is_cut_off_ends_once_and_frees_its_blocks(config, arrivals, gaps, num_blocks, data):
    """Aborts, stop strings, error answers and raising executors at any moment."""
    world = World(config, num_blocks)
    faults = st.sampled_from(["", "", "", "", "answer", "raise"])

    def disturb(plan):
        fault = data.draw(faults)
        if fault == "raise":
            raise RuntimeError("lost the device")
        return {plan.sequences[0].sequence_id: "not finite"} if fault else {}

    world.executor.before_step = disturb
    for request, gap in zip(arrivals, gaps, strict=False):
        world.add(request)
        for _ in range(gap):
            world.step()
        victim = data.draw(st.sampled_from(arrivals[: arrivals.index(request) + 1])).id
        match data.draw(st.sampled_from(["go on", "abort", "finish"])):
            case "abort":
                world.record(world.engine.abort(victim))
                assert world.engine.abort(victim) == []
            case "finish":
                output = world.engine.finish(f"{victim}/0", FinishReason.STOP)
                world.record([output] if output else [])
    world.run()
    for sequence_id, reason in world.ends.items():
        assert bool(world.errors[sequence_id]) == (reason is FinishReason.ERROR)


@SETTINGS
@given(requests(), POOLS, st.booleans(), st.booleans())
def test_the_policies_differ_in_time_alone(arrivals, num_blocks, caching, priority):
    tokens = []
    for policy in ("continuous", "static", "dynamic"):
        config = SchedulerConfig(
            max_num_batched_tokens=16,
            max_num_seqs=3,
            max_model_len=MAX_LEN,
            policy=policy,
            batch_window_s=3.0 if policy == "dynamic" else 0.0,
            enable_prefix_caching=caching,
            enable_priority=priority,
        )
        world = World(config, num_blocks)
        world.add(*arrivals)
        tokens.append(world.run().tokens)
    assert tokens[0] == tokens[1] == tokens[2]


@SETTINGS
@given(configs(policy="continuous", enable_priority=False), requests(n=1), POOLS)
def test_nobody_starves(config, arrivals, num_blocks):
    """Without priorities, requests start in the order of their arrival and the first is never preempted."""
    world = World(config, num_blocks)
    world.add(*arrivals)
    world.run()
    firsts = {}
    for plan in world.executor.plans:
        for scheduled in plan.sequences:
            firsts.setdefault(scheduled.request.id, len(firsts))
    assert list(firsts) == [request.id for request in arrivals]
    first = [s for plan in world.executor.plans for s in plan.sequences if s.request.id == arrivals[0].id]
    assert [s.start for s in first] == sorted({s.start for s in first})


@SETTINGS
@given(configs(), requests(), GAPS, POOLS)
def test_the_same_requests_give_the_same_plans(config, arrivals, gaps, num_blocks):
    """Order comes from lists and dicts, never from sets or object addresses."""
    one = run_with_arrivals(World(config, num_blocks), arrivals, gaps)
    two = run_with_arrivals(World(config, num_blocks), arrivals, gaps)
    assert one.executor.plans == two.executor.plans
