"""POST /v1/chat/completions: whole and streamed replies say the same, in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from toy_model import ToyExecutor, piece, say
from toy_server import CHAT, ToyServer, toy_server

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server() as running:
        yield running


@pytest.fixture(scope="module")
def fox() -> Iterator[ToyServer]:
    script = say(piece("The quick br"), piece("own fo"), piece("x jumps"))
    with toy_server(ToyExecutor(script=script)) as running:
        yield running


def joined(frames: list[dict[str, Any]], index: int = 0) -> str:
    choices = [c for f in frames for c in f["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content", "") for c in choices)


def test_a_reply_has_openais_shape(server: ToyServer) -> None:
    answer = server.chat(max_tokens=6, temperature=0)
    assert answer["object"] == "chat.completion" and answer["model"] == "alias"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant" and len(choice["message"]["content"]) >= 6
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


@pytest.mark.parametrize("extra", [{}, {"n": 3, "temperature": 1.0}, {"logprobs": True, "top_logprobs": 2}])
def test_a_stream_joins_to_the_plain_reply(server: ToyServer, extra: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "max_tokens": 9, "seed": 4, **extra}
    plain = server.post(CHAT, **body).json()
    frames = server.frames(CHAT, **body)
    for choice in plain["choices"]:
        index = choice["index"]
        own = [c for f in frames for c in f["choices"] if c["index"] == index]
        assert joined(frames, index) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        entries = [e for c in own if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == ((choice["logprobs"] or {}).get("content") or [])
    assert len({(f["id"], f["created"], f["object"]) for f in frames}) == 1


def test_the_role_comes_with_the_first_token(server: ToyServer) -> None:
    """A frame with a role and no text would be taken for the first token by clients (vLLM issue 3768)."""
    frames = server.frames(CHAT, messages=MESSAGES, max_tokens=5, n=2, seed=1)
    for index in (0, 1):
        deltas = [c["delta"] for f in frames for c in f["choices"] if c["index"] == index]
        assert deltas[0]["role"] == "assistant" and deltas[0]["content"]
        assert all("role" not in d for d in deltas[1:])


@pytest.mark.parametrize("wanted", [None, False, True])
def test_usage_comes_only_when_asked_for(server: ToyServer, wanted: bool | None) -> None:
    options = {} if wanted is None else {"stream_options": {"include_usage": wanted}}
    frames = server.frames(CHAT, messages=MESSAGES, max_tokens=4, n=2, seed=1, **options)
    assert all("choices" in f for f in frames)
    reasons = [c["index"] for f in frames for c in f["choices"] if c["finish_reason"]]
    assert sorted(reasons) == [0, 1]
    if wanted:
        assert frames[-1]["choices"] == [] and frames[-1]["usage"]["completion_tokens"] == 8
        assert all(f["usage"] is None for f in frames[:-1])
    else:
        assert all(f.get("usage") is None for f in frames)


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        (["own fox"], "The quick br", "own fox"),
        ("own fax", "The quick brown fox jumps", None),
        (["own", "own fox"], "The quick br", "own"),
    ],
)
def test_a_stop_string_never_leaks(fox: ToyServer, stop: Any, text: str, reason: str | None) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "stop": stop}
    (choice,) = fox.post(CHAT, **body).json()["choices"]
    assert (choice["message"]["content"], choice["stop_reason"]) == (text, reason)
    frames = fox.frames(CHAT, **body)
    assert joined(frames) == text
    assert frames[-1]["choices"][0]["finish_reason"] == "stop" == choice["finish_reason"]


def test_split_characters_are_joined_and_cut_ones_flushed_once() -> None:
    data = "d😀ď삼".encode()
    with toy_server(ToyExecutor(script=say(*data))) as server:
        frames = server.frames(CHAT, messages=MESSAGES, temperature=0, logprobs=True)
        assert joined(frames) == "d😀ď삼"
        entries = [e for f in frames for e in f["choices"][0]["logprobs"]["content"]]
        assert bytes(b for e in entries for b in e["bytes"]) == data + b"</s>"
        cut = server.frames(CHAT, messages=MESSAGES, temperature=0, max_tokens=3)
        assert joined(cut) == "d\ufffd"
    with toy_server(ToyExecutor(script=say(97, 0xFF, 98))) as server:
        assert joined(server.frames(CHAT, messages=MESSAGES, temperature=0)) == "a\ufffdb"


def test_logprobs_are_finite_when_one_token_is_possible(fox: ToyServer) -> None:
    """Masked tokens have no logarithm; their alternatives are left out (case: the encoder raised on -inf)."""
    answer = fox.chat(logprobs=True, top_logprobs=5, temperature=1e-6)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert -1e-3 <= entry["logprob"] <= 0
        assert all(-9999 <= top["logprob"] <= 0 for top in entry["top_logprobs"])


def test_omitted_max_tokens_means_the_room_left(server: ToyServer) -> None:
    whole = server.service.model.max_model_len
    for extra in ({}, {"max_tokens": None}, {"max_tokens": 10**6}):
        answer = server.chat(ignore_eos=True, temperature=0, **extra)
        assert answer["usage"]["total_tokens"] == whole
        assert answer["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_is_an_alias(server: ToyServer) -> None:
    assert server.chat(max_completion_tokens=5)["usage"]["completion_tokens"] == 5
    assert server.chat(max_completion_tokens=5, max_tokens=5)["usage"]["completion_tokens"] == 5
    conflict = server.post(CHAT, messages=MESSAGES, max_tokens=4, max_completion_tokens=5)
    assert conflict.status_code == 400 and conflict.json()["error"]["param"] == "max_completion_tokens"


def test_prompt_logprobs_cover_the_rendered_prompt(server: ToyServer) -> None:
    answer = server.chat(prompt_logprobs=0, max_tokens=1)
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


def test_a_developer_message_is_a_system_message(server: ToyServer) -> None:
    answers = [
        server.post(CHAT, messages=[{"role": role, "content": "x"}], temperature=0, max_tokens=5).json()
        for role in ("system", "developer")
    ]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_seeds_repeat_and_the_prefix_cache_is_reported(server: ToyServer) -> None:
    first, second = (server.chat("a prompt of more than one block", seed=9, max_tokens=8) for _ in "12")
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16


def test_parts_of_content_are_joined_and_images_refused(server: ToyServer) -> None:
    parts = [{"type": "text", "text": "hello"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "temperature": 0}
    assert server.post(CHAT, **body).json()["choices"] == server.chat(max_tokens=4, temperature=0)["choices"]
    parts[0] = {"type": "image_url", "image_url": {"url": "data:"}}  # type: ignore[dict-item]
    refused = server.post(CHAT, **body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("messages[0].content")


def test_a_failing_model_is_a_500_or_an_error_frame() -> None:
    with toy_server(ToyExecutor(poisons=lambda part: True)) as server:
        answer = server.post(CHAT, messages=MESSAGES)
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["type"] == "internal_error" and "not finite" in error["message"]
        assert "not finite" in server.frames(CHAT, messages=MESSAGES)[-1]["error"]["message"]
        assert server.is_idle()
