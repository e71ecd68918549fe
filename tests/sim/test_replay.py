"""Plan parity: a recorded run, replayed, plans the same at every step, whatever came and went in it."""

import json

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from toy_executor import EOS, ToyExecutor
from toy_workloads import configs, requests

from mansard.core.block_manager import BlockManager
from mansard.core.clock import VirtualClock
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.sim.recording import RecordingEngine, RecordingExecutor, RunLog
from mansard.sim.replay import read_run, replay

BLOCK_SIZE = 4


def record(path, config, arrivals, gaps, aborted, finished, num_blocks=24):
    """Run a toy engine with requests coming between steps, some aborted, some ended by a stop string."""
    clock = VirtualClock()
    blocks = BlockManager(num_blocks, BLOCK_SIZE, config.enable_prefix_caching)
    engine = Engine(ToyExecutor(BLOCK_SIZE, clock), Scheduler(config, blocks), clock, [EOS], vocab_size=61)
    with RunLog(path) as log:
        recorded = RecordingEngine(engine, log)
        waiting, step = list(zip(arrivals, gaps, strict=False)), 0
        while waiting or recorded.has_unfinished():
            while waiting and waiting[0][1] <= step:
                recorded.add(waiting.pop(0)[0])
            if recorded.has_unfinished():
                clock.advance_to(recorded.next_wakeup())
                recorded.step()
            step += 1
            if step in aborted:
                recorded.abort(aborted[step])
            if step in finished:
                recorded.finish(finished[step])
            if step == 40 and config.enable_prefix_caching:
                recorded.reset_prefix_cache()
    return engine


names = st.sampled_from([f"r{i}" for i in range(8)])


@settings(max_examples=150, deadline=None)
@given(
    configs(),
    requests(),
    st.lists(st.integers(0, 12), min_size=8, max_size=8).map(sorted),
    st.dictionaries(st.integers(1, 60), names, max_size=4),
    st.dictionaries(st.integers(1, 60), names.map(lambda name: name + "/0"), max_size=3),
)
def test_every_plan_is_replayed(tmp_path_factory, config, arrivals, gaps, aborted, finished):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    engine = record(path, config, arrivals, gaps, aborted, finished)
    parity = replay(read_run(path))
    assert parity.num_same == parity.num_plans, parity.differences
    assert parity.num_plans >= engine.stats().num_steps
    assert parity.num_preemptions == engine.scheduler.num_preemptions
    assert parity.num_hit_tokens == engine.scheduler.blocks.stats.num_hit_tokens
    event(f"preempted: {parity.num_preemptions > 0}")
    event(f"prefix hits: {parity.num_hit_tokens > 0}")


def test_a_difference_is_found(tmp_path):
    """A parity that cannot fail proves nothing."""
    path = tmp_path / "run.jsonl"
    record(path, configs_example(), *sample(), {}, {})
    lines = path.read_text().splitlines()
    index = max(i for i, line in enumerate(lines) if '"event":"step"' in line)
    step = json.loads(lines[index])
    step["seqs"][0][1] += 1
    path.write_text("\n".join([*lines[:index], json.dumps(step), *lines[index + 1 :]]))
    parity = replay(read_run(path))
    assert parity.num_same == parity.num_plans - 1
    assert len(parity.differences) == 1


def test_no_text_is_in_the_file(tmp_path):
    """Two files of one run share no hash: the key is drawn for each and kept nowhere."""
    for name in ("a", "b"):
        record(tmp_path / name, configs_example(), *sample(), {}, {})
    a, b = ((tmp_path / name).read_text() for name in ("a", "b"))
    assert "token_ids" not in a
    hashes = [{h for line in text.splitlines() for h in json.loads(line).get("blocks", ())} for text in (a, b)]
    assert hashes[0] and not hashes[0] & hashes[1]


def test_an_executor_alone_can_be_recorded(tmp_path):
    path, clock = tmp_path / "steps.jsonl", VirtualClock()
    config = configs_example()
    blocks = BlockManager(24, BLOCK_SIZE, config.enable_prefix_caching)
    with RunLog(path) as log:
        executor = RecordingExecutor(ToyExecutor(BLOCK_SIZE, clock), log, clock)
        engine = Engine(executor, Scheduler(config, blocks), clock, [EOS], vocab_size=61)
        engine.add(sample()[0][0])
        while engine.has_unfinished():
            engine.step()
    run = read_run(path)
    assert len(run.steps) == engine.stats().num_steps
    assert run.steps[0].chunks == [(9, 0)] and run.steps[1].contexts == [10]
    with pytest.raises(ValueError, match="cannot be replayed"):
        replay(run)


def test_a_file_that_is_no_run_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="no recorded run"):
        read_run(path)
    path.write_text('{"event": "run", "version": 99}\n')
    with pytest.raises(ValueError, match="version 99"):
        read_run(path)


def configs_example():
    from mansard.core.config import SchedulerConfig

    return SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, max_model_len=40)


def sample():
    from mansard.core.types import Request, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    return [Request(f"r{i}", (1, 1, 1, 1, 2 + i, 1, 3, 1, 1), params) for i in range(3)], [0, 2, 5]
