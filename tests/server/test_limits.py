"""What protects a server: sizes, keys, the queue, deadlines, origins; and that the log holds no prompts."""

from __future__ import annotations

import json
import logging
import socket
import threading
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import CHAT, COMPLETIONS, ToyServer, toy_server, until

from mansard.server.access_log import JsonLines
from mansard.server.options import ServerOptions


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_bodies_prompts_and_counts_are_bounded() -> None:
    with toy_server(server={"max_body_bytes": 20_000, "max_sequences_per_request": 8}) as server:
        assert error_of(server.post(COMPLETIONS, prompt="a" * 30_000), 413)["code"] == "body_too_large"
        error = error_of(server.post(COMPLETIONS, prompt="a" * 17_000), 400)  # 32 characters for each of 512 tokens
        assert error["code"] == "context_length_exceeded" and "16,384" in error["message"]
        assert error_of(server.post(COMPLETIONS, prompt=["a"] * 5, n=2), 400)["param"] == "prompt"
        assert error_of(server.post(COMPLETIONS, prompt="a", n=9), 400)["param"] == "n"
        assert error_of(server.post(CHAT, messages=[{"role": "user", "content": "a"}], n=9), 400)["param"] == "n"


def test_a_body_that_comes_too_slowly_is_408() -> None:
    with toy_server(server={"body_timeout_s": 0.1}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99"
            connection.sendall(head.encode() + b'\r\n\r\n{"prompt":')
            connection.settimeout(10)
            assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_full_queue_is_429_and_says_when_to_come_again() -> None:
    with toy_server(server={"max_queued": 1}, max_num_seqs=1) as server:
        server.executor.gate.clear()
        asking = []
        for i in range(2):
            asking.append(threading.Thread(target=server.complete, args=(f"{i}",)))
            asking[-1].start()
            until(lambda i=i: server.service.engine.num_requests == i + 1)
        refused = server.post(COMPLETIONS, prompt="x")
        assert error_of(refused, 429)["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert server.client.get("/health").status_code == 200, "others are not held up"
        server.executor.gate.set()
        for thread in asking:
            thread.join()
        assert server.post(COMPLETIONS, prompt="x").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_a_request_and_frees_its_blocks(stream: bool) -> None:
    with toy_server(ToyExecutor(step_s=0.01), server={"request_timeout_s": 30.0}) as server:
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": stream}
        answer = server.client.post(COMPLETIONS, json=body, headers={"x-request-timeout": "0.1"})
        if stream:
            events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
            assert json.loads(events[-2])["error"]["code"] == "timeout" and events[-1] == "[DONE]"
        else:
            assert error_of(answer, 408)["code"] == "timeout"
        until(server.is_idle)
        for wrong in ("soon", "-1", "nan", "inf"):
            refused = server.client.post(COMPLETIONS, json=body, headers={"x-request-timeout": wrong})
            assert error_of(refused, 400)["param"] == "x-request-timeout"


def test_keys() -> None:
    with toy_server(server={"api_keys": ("secret", "other")}) as server:
        body = {"prompt": "x", "max_tokens": 1}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            refused = server.client.post(COMPLETIONS, json=body, headers=headers)
            assert error_of(refused, 401)["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("secret", "other"):
            taken = server.client.post(COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"})
            assert taken.status_code == 200
        assert server.client.get("/v1/models").status_code == server.client.get("/metrics").status_code == 401
        assert server.client.get("/health").status_code == server.client.get("/ready").status_code == 200


def test_origins_are_closed_until_they_are_opened() -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with toy_server() as server:
        answer = server.client.options(CHAT, headers=asked)
        assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers
    with toy_server(server={"allowed_origins": ("https://a.example",)}) as server:
        answer = server.client.options(CHAT, headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = server.client.options(CHAT, headers={**asked, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_the_prefix_cache_is_reset_only_where_that_is_allowed() -> None:
    with toy_server() as server:
        assert error_of(server.client.post("/reset_prefix_cache"), 403)["type"] == "permission_error"
    with toy_server(server={"allow_cache_reset": True}) as server:
        cached = lambda: server.complete("a" * 40)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert [cached(), cached()] == [0, 32]
        assert server.client.post("/reset_prefix_cache").json() == {"status": "ok"}
        assert cached() == 0


def test_every_answer_has_an_id_and_a_sane_one_is_kept() -> None:
    with toy_server() as server:
        assert server.client.get("/health", headers={"x-request-id": "mine:7"}).headers["x-request-id"] == "mine:7"
        ids = {server.client.get(path).headers["x-request-id"] for path in ("/health", "/nowhere", "/v1/models")}
        assert len(ids) == 3
        long = server.client.get("/health", headers={"x-request-id": "x" * 200}).headers["x-request-id"]
        assert len(long) == 32


def test_the_log_is_json_and_holds_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with toy_server() as server, caplog.at_level(logging.INFO, "mansard.access"):
        server.complete("a secret prompt", max_tokens=3)
        server.chat("a secret question", max_tokens=2)
        server.post(COMPLETIONS, prompt="a secret prompt", temperature="hot")
        until(lambda: len(caplog.records) == 3)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert not any("secret" in json.dumps(line) for line in lines)
    assert [(line["status"], line.get("output_tokens")) for line in lines] == [(200, 3), (200, 2), (400, None)]
    assert lines[0]["prompt_tokens"] == 15 and lines[0]["duration_s"] > 0


def test_readiness_ends_when_the_server_begins_to_stop() -> None:
    with toy_server() as server:
        assert server.client.get("/ready").json() == {"status": "ready"}
        server.service.is_draining = True
        assert "stopping" in error_of(server.client.get("/ready"), 503)["message"]
        assert server.client.get("/health").status_code == 200


def test_a_comment_is_sent_while_a_stream_waits() -> None:
    """Queued behind another request for longer than a proxy's patience."""
    with toy_server(server={"keep_alive_s": 0.05}, max_num_seqs=1) as server:
        server.executor.gate.clear()
        first = threading.Thread(target=server.complete, args=("first",))
        first.start()
        until(lambda: server.service.engine.num_requests == 1)
        with server.client.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True, "max_tokens": 2}) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line) == ": keep-alive"
            server.executor.gate.set()
            assert any(line == "data: [DONE]" for line in lines)
        first.join()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 0},
        {"request_timeout_s": 0},
        {"max_queued": -1},
        {"api_keys": ("",)},
        {"tool_call_parser": "xml"},
    ],
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|choose one of|is empty"):
        ServerOptions(**wrong)


def test_tokenize_and_detokenize() -> None:
    with toy_server() as server:
        check_tokenization(server)


def check_tokenization(server: ToyServer) -> None:
    post = lambda path, **body: server.post(path, **body)
    answer = post("/tokenize", prompt="ab😀", return_token_strs=True).json()
    assert answer["tokens"] == list("ab😀".encode()) and answer["count"] == 6 and answer["max_model_len"] == 512
    assert len(answer["token_strs"]) == 6
    assert post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "ab😀", "content": "ab😀"}
    assert post("/tokenize", content="ab").json()["tokens"] == [97, 98]
    chat = post("/tokenize", messages=[{"role": "user", "content": "x"}]).json()
    assert chat["count"] == server.chat("x", max_tokens=1)["usage"]["prompt_tokens"]
    assert error_of(post("/tokenize"), 400)["param"] == "prompt"
    assert error_of(post("/detokenize", tokens=[99_999]), 400)["param"] == "tokens"
    assert error_of(post("/detokenize", tokens=["a"]), 400)["param"] == "tokens[0]"
