"""LLM over a toy model: outputs, stops, n, seeds, errors of one request, and what it leaves behind."""

from __future__ import annotations

import pytest
from toy_model import EOS, ToyExecutor, piece, say, tokens_of, toy_model

from mansard.core.types import FinishReason, SamplingParams
from mansard.runtime.llm import LLM
from mansard.runtime.parameter_error import ParameterError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def assert_idle(llm: LLM) -> None:
    stats = llm.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert not llm.engine._under_way


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    llm = LLM(toy_model())
    outputs = llm.generate(["a", "bc", list(b"d")], GREEDY)
    assert [o.prompt for o in outputs] == ["a", "bc", None]
    assert [o.prompt_token_ids for o in outputs] == [(97,), (98, 99), (100,)]
    for output in outputs:
        (completion,) = output.outputs
        assert completion.finish_reason is FinishReason.LENGTH
        assert len(completion.token_ids) == output.metrics.num_output_tokens == 12
        assert completion.text == llm.model.tokenizer.decode(completion.token_ids)
        assert output.metrics.ttft_s is not None and 0 <= output.metrics.ttft_s <= output.metrics.e2e_s
        assert output.metrics.tpot_s is not None
    assert_idle(llm)


def test_a_batch_equals_its_prompts_alone() -> None:
    prompts = [f"prompt {i}" for i in range(20)]
    params = [SamplingParams(seed=i, max_tokens=20, top_p=0.9, logprobs=2) for i in range(20)]
    together = LLM(toy_model(num_blocks=9), max_num_seqs=8).generate(prompts, params)
    for prompt, chosen, output in zip(prompts, params, together, strict=True):
        (alone,) = LLM(toy_model()).generate(prompt, chosen)
        assert output.outputs == alone.outputs


def test_n_sequences_differ_and_repeat_with_the_seed() -> None:
    llm = LLM(toy_model())
    params = SamplingParams(n=4, seed=3, max_tokens=8)
    first, second = llm.generate(["x", "x"], params)
    assert [o.index for o in first.outputs] == [0, 1, 2, 3]
    assert len({o.text for o in first.outputs}) == 4
    assert first.outputs == second.outputs
    assert first.metrics.num_output_tokens == 32
    assert_idle(llm)


def test_unseeded_requests_differ_from_each_other_but_not_from_run_to_run() -> None:
    params = SamplingParams(max_tokens=10)
    runs = [[o.outputs[0].text for o in LLM(toy_model(), seed=5).generate(["x", "x"], params)] for _ in "12"]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


@pytest.mark.parametrize(
    ("stop", "text", "reason", "stop_reason", "num_tokens"),
    [
        (("own fox",), "The quick br", FinishReason.STOP, "own fox", 3),
        (("own fax",), "The quick brown fox jumps", FinishReason.STOP, None, 4),
        (("own", "own fox"), "The quick br", FinishReason.STOP, "own", 2),
        (("jumps!",), "The quick brown fox jumps", FinishReason.STOP, None, 4),
    ],
)
def test_stop_strings_across_tokens(
    stop: tuple[str, ...], text: str, reason: FinishReason, stop_reason: str | None, num_tokens: int
) -> None:
    script = say(piece("The quick br"), piece("own fo"), piece("x jumps"))
    llm = LLM(toy_model(ToyExecutor(script=script)))
    (output,) = llm.generate("go", SamplingParams(temperature=0.0, max_tokens=50, stop=stop, logprobs=0))
    (completion,) = output.outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (text, reason, stop_reason)
    assert len(completion.token_ids) == num_tokens == len(completion.logprobs or ())
    assert_idle(llm)


def test_a_stop_token_is_named_and_is_no_text() -> None:
    llm = LLM(toy_model(ToyExecutor(script=say(*b"ab!c"))))
    (output,) = llm.generate("go", SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(33,)))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("ab", 33)
    kept = SamplingParams(temperature=0.0, stop_token_ids=(33,), include_stop_str_in_output=True)
    assert llm.generate("go", kept)[0].outputs[0].text == "ab!"


def test_a_character_cut_by_the_length_becomes_one_replacement() -> None:
    llm = LLM(toy_model(ToyExecutor(script=say(*"a😀".encode()))))
    (output,) = llm.generate("go", SamplingParams(temperature=0.0, max_tokens=3))
    assert output.outputs[0].text == "a\ufffd"


def test_prompt_logprobs_are_complete_and_repeatable() -> None:
    llm = LLM(toy_model(), max_num_batched_tokens=7, max_num_seqs=4)
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1)
    first, second = (llm.generate("a prompt of some length, twice", params)[0] for _ in "12")
    assert [e.token_id for e in first.prompt_logprobs or ()] == list(first.prompt_token_ids[1:])
    assert first.prompt_logprobs == second.prompt_logprobs
    assert first.outputs[0].token_ids == () and first.outputs[0].finish_reason is FinishReason.LENGTH


def test_a_poisoned_row_ends_one_request_alone() -> None:
    """Logits with NaN must fail their request, not become token 0 again and again."""
    bad = ToyExecutor(poisons=lambda part: part.request.prompt_token_ids == (98,))
    good = LLM(toy_model()).generate("a", GREEDY)[0].outputs
    llm = LLM(toy_model(bad))
    first, second = llm.generate(["a", "b"], GREEDY)
    assert first.outputs == good
    assert second.outputs[0].finish_reason is FinishReason.ERROR
    assert "not finite" in (second.outputs[0].error or "")
    assert_idle(llm)


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("a", SamplingParams(logit_bias={191_222: -100.0}), "logit_bias"),
        ("a", SamplingParams(stop_token_ids=(9_999_999,), min_tokens=5), "stop_token_ids"),
        ("a", SamplingParams(stop_token_ids=(-1,)), "stop_token_ids"),
        ("a", SamplingParams(top_k=9_999_999), "top_k"),
        ("a", SamplingParams(temperature=float("nan")), "temperature"),
        ("a", SamplingParams(max_tokens=-1), "max_tokens"),
        ("a", SamplingParams(n=0), "n"),
        ("", SamplingParams(), "prompt"),
        ([1, 999_999], SamplingParams(), "prompt"),
        ("a" * 600, SamplingParams(), "prompt"),
    ],
)
def test_bad_requests_are_refused_by_name_before_anything_runs(
    prompt: str | list[int], params: SamplingParams, param: str
) -> None:
    executor = ToyExecutor()
    llm = LLM(toy_model(executor))
    with pytest.raises(ParameterError) as caught:
        llm.generate([prompt], params)
    assert caught.value.param == param
    assert not executor.plans


def test_chat_renders_the_template_without_a_second_bos() -> None:
    llm = LLM(toy_model(ToyExecutor(script=say(*b"hi"))))
    messages = [{"role": "user", "content": "yo"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nyo<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == (258, *tokens_of("user\nyo"), 259, 10, 258, *tokens_of("assistant\n"))
    assert output.outputs[0].text == "hi" and output.outputs[0].token_ids[-1] == EOS
    assert len(llm.chat([messages, messages], GREEDY)) == 2
    with pytest.raises(ParameterError, match="no chat template"):
        LLM(toy_model(template=None)).chat(messages)


def test_a_failing_step_ends_its_requests_and_the_next_ones_work() -> None:
    broken = iter([True, False])
    llm = LLM(toy_model(ToyExecutor(fails=lambda plan: next(broken, False))))
    first, second = llm.generate(["a", "b"], GREEDY)
    assert first.outputs[0].finish_reason is second.outputs[0].finish_reason is FinishReason.ERROR
    assert llm.generate("a", GREEDY)[0].outputs[0].finish_reason is FinishReason.LENGTH
    assert_idle(llm)


def test_leaving_a_stream_early_frees_its_blocks() -> None:
    llm = LLM(toy_model(), enable_prefix_caching=False)
    stream = llm.stream_completion("a", SamplingParams(max_tokens=100))
    assert next(stream).token_ids
    assert llm.engine.stats().num_running == 1
    stream.close()
    assert_idle(llm)


def test_streamed_text_joins_to_the_whole() -> None:
    llm = LLM(toy_model())
    deltas = list(llm.stream_completion("a", GREEDY))
    assert "".join(d.text for d in deltas) == llm.generate("a", GREEDY)[0].outputs[0].text
    assert [d.last for d in deltas] == [False] * (len(deltas) - 1) + [True]


def test_the_progress_bar_counts_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    LLM(toy_model()).generate(["a", "b", "c"], GREEDY, use_progress_bar=True)
    assert "3/3" in capsys.readouterr().out
