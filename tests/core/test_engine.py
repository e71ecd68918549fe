"""The engine's own duties: every request ends once, errors stay where they happened."""

from toy_executor import World

from mansard.core.config import SchedulerConfig
from mansard.core.types import FinishReason, Request, SamplingParams

CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, max_model_len=64, watermark=0.0)


def greedy(name: str, prompt: range, max_tokens: int = 8, **params) -> Request:
    return Request(name, tuple(prompt), SamplingParams(temperature=0, max_tokens=max_tokens, **params))


def test_an_error_answer_ends_its_sequence_alone():
    world = World(CONFIG, 40)
    world.executor.before_step = lambda plan: {"b/0": "not finite"} if world.clock.now() > 3 else {}
    world.add(*(greedy(name, range(k, k + 9), ignore_eos=True) for k, name in enumerate("abc", 1)))
    world.run().check_outputs()
    assert world.ends == {"a/0": FinishReason.LENGTH, "b/0": FinishReason.ERROR, "c/0": FinishReason.LENGTH}
    assert world.errors["b/0"] == "not finite"


def test_an_executor_that_raises_fails_its_step_and_the_engine_goes_on():
    world = World(CONFIG, 40)

    def explode(plan):
        raise MemoryError("no room")

    world.add(greedy("a", range(9)), greedy("b", range(1, 9)))
    world.step()
    world.executor.before_step = explode
    world.step()
    assert world.ends == {"a/0": FinishReason.ERROR, "b/0": FinishReason.ERROR}
    assert world.errors["a/0"] == "MemoryError: no room"
    world.executor.before_step = lambda plan: {}
    world.add(greedy("c", range(9)))
    world.run().check_outputs()
