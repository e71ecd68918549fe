"""POST /v1/completions: all prompt forms, echo and log-probabilities, limits, streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from toy_model import ToyExecutor, piece, say
from toy_server import COMPLETIONS, ToyServer, toy_server


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server() as running:
        yield running


def choices(server: ToyServer, prompt: Any = "hello", **body: Any) -> list[dict[str, Any]]:
    return server.complete(prompt, temperature=0, **body)["choices"]


def test_the_four_forms_of_a_prompt(server: ToyServer) -> None:
    (one,) = choices(server, "ab")
    assert choices(server, [97, 98]) == [one]
    for prompts in (["ab", "c"], [[97, 98], [99]]):
        first, second = choices(server, prompts)
        assert first == one and second["index"] == 1
        assert {**second, "index": 0} == choices(server, "c")[0]


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], [1, "a"], [[1], 2], 5, None, [999_999], [-1], [1.5]])
def test_prompts_that_are_none(server: ToyServer, prompt: Any) -> None:
    refused = server.post(COMPLETIONS, prompt=prompt)
    assert refused.status_code == 400
    assert (refused.json()["error"]["param"] or "").startswith("prompt")


def test_max_tokens(server: ToyServer) -> None:
    """Omitted means OpenAI's 16; the cap ends with "length"; 0 is for echo alone; negatives are refused."""
    for extra, count in (({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 1}, 1)):
        answer = server.complete(temperature=0, **extra)
        assert answer["usage"]["completion_tokens"] == count
        assert answer["choices"][0]["finish_reason"] == "length"
    for value in (0, -1):
        refused = server.post(COMPLETIONS, prompt="a", max_tokens=value)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"
    assert choices(server, "ab", max_tokens=0, echo=True)[0]["text"] == "ab"


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt_and_repeats(server: ToyServer, max_tokens: int, stream: bool) -> None:
    """The second request would be a whole prefix hit: its prompt must be scored all the same."""
    prompt = ("a prompt of some length, " * 5)[:117]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    answers = []
    for _ in range(2):
        if stream:
            pieces = [f["choices"][0] for f in server.frames(COMPLETIONS, **body)]
            parts = [p["logprobs"] for p in pieces]
            whole = {key: [v for p in parts for v in p[key]] for key in parts[0]}
            answers.append(("".join(p["text"] for p in pieces), whole))
        else:
            (choice,) = server.post(COMPLETIONS, **body).json()["choices"]
            answers.append((choice["text"], choice["logprobs"]))
    assert answers[0] == answers[1]
    text, logprobs = answers[0]
    assert text.startswith(prompt)
    for column in logprobs.values():
        assert len(column) == len(prompt) + max_tokens
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(v <= 0 for v in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"]) == text
    assert [text[o] for o in logprobs["text_offset"][: len(prompt)]] == list(prompt)
    for token, value, top in list(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == value and len(top) in (1, 2)


def test_overlapping_prompts_score_alike_in_any_order(server: ToyServer) -> None:
    short, long = "shared beginning of two prompts, ", "shared beginning of two prompts, and more of it"
    scores = lambda p: choices(server, p, echo=True, logprobs=1, max_tokens=0)[0]["logprobs"]["token_logprobs"]
    first = [scores(short), scores(long)]
    with toy_server() as fresh:
        swapped = [
            choices(fresh, p, echo=True, logprobs=1, max_tokens=0)[0]["logprobs"]["token_logprobs"]
            for p in (long, short)
        ]
    assert first == swapped[::-1] and first[1][: len(short)] == first[0]


def test_echo_with_several_sequences_gives_each_the_prompt(server: ToyServer) -> None:
    answer = server.complete("abc", echo=True, logprobs=0, n=3, seed=2, max_tokens=2)
    for choice in answer["choices"]:
        assert choice["text"].startswith("abc")
        assert choice["logprobs"]["tokens"][:3] == ["a", "b", "c"]
        assert len(choice["logprobs"]["tokens"]) == 5


def test_prompt_logprobs_are_returned_beside_the_text(server: ToyServer) -> None:
    answer = server.complete("abc", prompt_logprobs=1, max_tokens=1, temperature=0)
    first, *scored = answer["choices"][0]["prompt_logprobs"]
    assert first is None and [entry["token"] for entry in scored] == ["b", "c"]
    refused = server.post(COMPLETIONS, prompt="abc", prompt_logprobs=1, stream=True)
    assert refused.status_code == 400


def test_a_stream_of_many_choices_joins_to_the_plain_answer(server: ToyServer) -> None:
    body = {"prompt": ["ab", "cd"], "n": 2, "seed": 8, "max_tokens": 5, "logprobs": 1}
    plain = server.post(COMPLETIONS, **body).json()
    frames = server.frames(COMPLETIONS, **body, stream_options={"include_usage": True})
    assert frames[-1]["usage"] == plain["usage"]
    assert plain["usage"]["prompt_tokens"] == 4 and plain["usage"]["completion_tokens"] == 20
    assert [c["index"] for c in plain["choices"]] == [0, 1, 2, 3]
    for choice in plain["choices"]:
        own = [c for f in frames for c in f["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert [v for c in own for v in c["logprobs"]["token_logprobs"]] == choice["logprobs"]["token_logprobs"]


def test_stop_strings() -> None:
    script = say(piece("The quick br"), piece("own fo"), piece("x jumps"))
    with toy_server(ToyExecutor(script=script)) as server:
        (choice,) = choices(server, stop="own fox")
        assert (choice["text"], choice["finish_reason"]) == ("The quick br", "stop")
        frames = server.frames(COMPLETIONS, prompt="a", temperature=0, stop=["own fox"])
        assert "".join(f["choices"][0]["text"] for f in frames) == "The quick br"


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 2000]}, "stop"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(server: ToyServer, extra: dict[str, Any], param: str) -> None:
    refused = server.post(COMPLETIONS, prompt="a", **extra)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
