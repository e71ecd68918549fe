"""Whatever a client sends, the answer is OpenAI's envelope, and others are not touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import CHAT, COMPLETIONS, ToyServer, toy_server, until

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server() as running:
        yield running


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", "hot", "temperature"),
        ("temperature", "0.7", "temperature"),
        ("temperature", -1, "temperature"),
        ("temperature", True, "temperature"),
        ("max_tokens", 5.5, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("n", 0, "n"),
        ("n", 10**9, "n"),
        ("stop", 5, "stop"),
        ("stop", ["a", 5], "stop"),
        ("seed", "x", "seed"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.5, "top_p"),
        ("top_k", -2, "top_k"),
        ("top_k", 9_999_999, "top_k"),
        ("min_p", -0.1, "min_p"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("presence_penalty", 3, "presence_penalty"),
        ("logit_bias", {"191222": -100}, "logit_bias"),
        ("logit_bias", {"AI": -100}, "logit_bias"),
        ("logit_bias", {"5": -101}, "logit_bias"),
        ("logit_bias", {str(i): 1 for i in range(2000)}, "logit_bias"),
        ("stop_token_ids", [9_999_999], "stop_token_ids"),
        ("stop_token_ids", [-1], "stop_token_ids"),
        ("top_logprobs", 3, "top_logprobs"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("response_format", {"type": "yaml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format"),
        ("tools", [{"type": "function"}], "tools[0].function"),
        ("tool_choice", "required", "tool_choice"),
        ("allowed_token_ids", list(range(2000)), "allowed_token_ids"),
        ("functions", [{"name": "f"}], "functions"),
        ("messages", [], "messages"),
        ("messages", "hello", "messages"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [{"role": "boss", "content": "x"}], "messages[0].role"),
        ("messages", [{"content": "x"}], "messages[0].role"),
        ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs"),
        ("cache_salt", "", "cache_salt"),
        ("priority", 1, "priority"),
    ],
)
def test_wrong_values_are_400_with_the_parameter(server: ToyServer, field: str, value: Any, param: str) -> None:
    num_before = len(server.executor.plans)
    error = error_of(server.post(CHAT, **{"messages": MESSAGES, field: value}), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert len(server.executor.plans) == num_before, "nothing may be scheduled"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"messages": NaN}', b"\xff\xfe", b'"x"'])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_no_object(server: ToyServer, path: str, body: bytes) -> None:
    error_of(server.client.post(path, content=body, headers={"content-type": "application/json"}), 400)


def test_numbers_that_are_not_finite(server: ToyServer) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "temperature": {number}}}'
        sent = server.client.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert error_of(sent, 400)["param"] == "temperature"


def test_the_wrong_type_path_and_method(server: ToyServer) -> None:
    error_of(server.client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}), 415)
    error_of(server.client.post(CHAT, data={"a": "b"}), 415)
    error_of(server.client.get(CHAT), 405)
    assert "no such path" in error_of(server.client.get("/v1/nothing"), 404)["message"]
    error_of(server.client.post("/v1/chat/completions/", json={}), 404)


def test_an_unknown_model_is_404(server: ToyServer) -> None:
    assert error_of(server.post(CHAT, model="gpt-9", messages=MESSAGES), 404)["code"] == "model_not_found"
    for name in ("toy", "alias"):
        assert server.chat(model=name, max_tokens=1)["model"] == name


def test_unknown_fields_are_accepted_and_reported(server: ToyServer) -> None:
    message = {"role": "user", "content": "hello", "id": 7}
    answer = server.post(CHAT, messages=[message], max_tokens=1, metadata={}, temprature=0, **{"x\r\ny: z": 1})
    assert answer.status_code == 200
    header = answer.headers["x-mansard-warning"]
    assert header == "unknown fields ignored: metadata, temprature, x??y?_z, messages[0].id".replace("_", "?")
    assert "x-mansard-warning" not in server.post(CHAT, messages=MESSAGES, max_tokens=1).headers
    streamed = server.post(CHAT, messages=MESSAGES, max_tokens=1, stream=True, foo=1)
    assert "foo" in streamed.headers["x-mansard-warning"]


def test_a_prompt_that_is_too_long_says_the_numbers(server: ToyServer) -> None:
    error = error_of(server.post(COMPLETIONS, prompt="a" * 600), 400)
    assert error["code"] == "context_length_exceeded"
    assert "600" in error["message"] and "512" in error["message"]


def test_a_prompt_larger_than_the_pool_is_refused_at_once() -> None:
    with toy_server(num_blocks=7) as server:
        error = error_of(server.post(COMPLETIONS, prompt="a" * 120), 400)
        assert "120" in error["message"] and "7" in error["message"]


def test_surrogates_in_a_prompt_are_no_crash(server: ToyServer) -> None:
    headers = {"content-type": "application/json"}
    for path, body in (
        (COMPLETIONS, rb'{"prompt": "\ud800", "max_tokens": 1, "echo": true}'),
        (CHAT, rb'{"messages": [{"role": "user", "content": "\ud800"}], "max_tokens": 1, "\udfff": 1}'),
    ):
        assert server.client.post(path, content=body, headers=headers).status_code in (200, 400)


def test_bad_requests_do_not_touch_a_running_one() -> None:
    """Ids outside the vocabulary once wrote into neighbours' rows (vLLM issue 16529)."""
    with toy_server() as server:
        body = {"prompt": "good", "temperature": 0, "max_tokens": 60, "logprobs": 2}
        alone = server.post(COMPLETIONS, **body).json()["choices"]
        server.executor.step_s = 0.002
        answers: list[Any] = []
        good = threading.Thread(target=lambda: answers.append(server.post(COMPLETIONS, **body).json()))
        good.start()
        until(lambda: server.service.engine.stats().num_running)
        bad = [
            {"logit_bias": {"191222": -100}},
            {"logit_bias": {"-3": 1}},
            {"stop_token_ids": [9_999_999], "min_tokens": 5},
            {"top_k": 9_999_999},
        ]
        for extra in bad:
            assert server.post(COMPLETIONS, prompt="x", **extra).status_code == 400
        good.join()
        assert answers[0]["choices"] == alone
        assert server.client.get("/health").status_code == 200


def test_a_template_that_refuses_is_a_400() -> None:
    template = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}x"
    with toy_server(ToyExecutor(), template=template) as server:
        error = error_of(server.post(CHAT, messages=MESSAGES), 400)
        assert error["param"] == "messages" and "system first" in error["message"]
    with toy_server(ToyExecutor(), template=None) as server:
        assert "no chat template" in error_of(server.post(CHAT, messages=MESSAGES), 400)["message"]
