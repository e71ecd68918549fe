"""What the engine refuses before scheduling (cases B18, B25, B27), and that others do not notice."""

import pytest
from toy_executor import VOCAB, World

from mansard.core.admission import validate
from mansard.core.config import SchedulerConfig
from mansard.core.types import Request, SamplingParams

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=4096)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logit_bias": {191222: -100.0}}, "logit_bias"),
        ({"logit_bias": {"AI": -100.0}}, "logit_bias"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logit_bias": {3: 101.0}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(2000), 1.0)}, "logit_bias"),
        ({"stop_token_ids": (9999999,), "min_tokens": 5}, "stop_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": (True,)}, "stop_token_ids"),
        ({"stop_token_ids": tuple(range(2000))}, "stop_token_ids"),
        ({"top_k": 9999999}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"n": 0}, "n is 0"),
        ({"n": 1000}, "n is 1000"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 1000}, "prompt_logprobs"),
        ({"stop": ("",)}, "stop"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(fields, name):
    with pytest.raises(ValueError, match=name):
        validate(SamplingParams(**fields), vocab_size=1024)


def test_good_extremes_pass():
    validate(
        SamplingParams(
            temperature=0.0,
            top_k=1024,
            top_p=1.0,
            min_p=1.0,
            max_tokens=None,
            min_tokens=10**6,
            logit_bias={0: -100.0, 1023: 100.0},
            stop_token_ids=(0, 1023),
            n=128,
        ),
        vocab_size=1024,
    )
    validate(SamplingParams(max_tokens=0, prompt_logprobs=0), vocab_size=1024)
    validate(SamplingParams(top_k=-1, stop_token_ids=(10**9,)), vocab_size=None)


@pytest.mark.parametrize("prompt", [(), (VOCAB,), (-1,), (1, 2.0), (1, True), ("a",)])
def test_a_bad_prompt_is_refused(prompt):
    world = World(CONFIG, 64)
    with pytest.raises(ValueError, match="prompt_token_ids"):
        world.add(Request("bad", prompt))
    assert not world.engine.has_unfinished()


def test_refusals_leave_a_running_neighbour_alone():
    world = World(CONFIG, 64)
    world.add(Request("good", (1, 2, 3), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)))
    while world.engine.has_unfinished():
        with pytest.raises(ValueError, match="logit_bias"):
            world.add(Request("bad", (1,), SamplingParams(logit_bias={VOCAB: 1.0})))
        world.step()
    world.check_outputs()


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers():
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=100)
    world = World(config, 64)
    with pytest.raises(ValueError, match=r"prompt has 100 tokens .*1 more; max_model_len is 100 \(raise"):
        world.add(Request("a", (1,) * 100))
    world.add(Request("b", (1,) * 99, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)))
    world.add(Request("c", (1,) * 100, SamplingParams(max_tokens=0, prompt_logprobs=0)))
    world.run()
    assert len(world.tokens["b/0"]) == 1 and len(world.logprobs["c/0"]) == 99


def test_a_prompt_beyond_the_pool_is_refused_with_the_numbers():
    """Case B25: 7 blocks of 16, a prompt of 120 tokens, max_model_len 4096."""
    world = World(CONFIG, num_blocks=7, block_size=16)
    with pytest.raises(ValueError, match="prompt has 120 tokens and needs 8 KV blocks of 16; the pool has 7"):
        world.add(Request("a", (1,) * 120))
    assert not world.engine.has_unfinished()
    world.add(Request("b", (1,) * 112, SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)))
    world.run()
    assert len(world.tokens["b/0"]) == 1  # 112 tokens fill the pool; the last token needs no KV


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    world = World(CONFIG, 64)
    world.add(Request("a", (1, 2, 3)))
    with pytest.raises(ValueError, match="'a' is in use"):
        world.engine.add(Request("a", (4,)))
    world.run()
    world.engine.add(Request("a", (4,)))
