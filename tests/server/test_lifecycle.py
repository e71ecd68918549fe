"""Clients that leave, preemption under a tiny pool, health, metrics and the models list."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import CHAT, COMPLETIONS, ToyServer, toy_server, until


def send_raw(server: ToyServer, path: str, **body: Any) -> socket.socket:
    """Send a request and keep the socket, unread."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + data)
    return connection


def test_leaving_frees_everything_within_two_steps() -> None:
    """50 plain and 50 streamed requests for 4,000 tokens whose clients leave after 200 ms, most of them queued."""
    toy = {"num_blocks": 1024, "max_model_len": 8192, "max_num_seqs": 16}
    with toy_server(ToyExecutor(step_s=0.005), **toy) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "ignore_eos": True}
        connections = [send_raw(server, CHAT, stream=i % 2 == 1, seed=i, **body) for i in range(100)]
        stats = server.service.engine.stats
        until(lambda: stats().num_running == 16 and stats().num_waiting == 84)
        time.sleep(0.2)
        for connection in connections:
            connection.close()
        until(lambda: server.service.engine.num_requests == 0)
        num_before = len(server.executor.plans)
        until(server.is_idle)
        assert len(server.executor.plans) - num_before <= 2
        assert server.post(CHAT, **{**body, "max_tokens": 2}).status_code == 200


def test_a_half_closed_socket_still_gets_its_answer_or_frees_its_blocks() -> None:
    with toy_server(ToyExecutor(step_s=0.001)) as server:
        connection = send_raw(server, COMPLETIONS, prompt="x", max_tokens=20, temperature=0)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10.0)
        connection.recv(65536)  # the answer, or the end of a connection that was taken for closed
        connection.close()
        until(server.is_idle)


def test_many_requests_leave_nothing_behind() -> None:
    with toy_server() as server:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: server.complete(f"p{i}", max_tokens=2), range(200)))
        until(server.is_idle)
        engine = server.service.engine
        assert not engine._queues and not engine._engine._under_way and not engine._thread._under_way
        assert not server.service.metrics._times


def test_preemption_changes_no_answer() -> None:
    """A pool of 7 blocks holds one of the two requests only: the other is computed again."""
    bodies = [
        {"prompt": letter * 34, "max_tokens": 35, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        for letter in "ab"
    ]
    with toy_server() as server:
        alone = [server.post(COMPLETIONS, **body).json()["choices"] for body in bodies]
    with toy_server(ToyExecutor(step_s=0.001), num_blocks=7) as server:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda body: server.post(COMPLETIONS, **body).json(), bodies))
        assert server.service.engine.stats().num_preemptions > 0
        assert [a["choices"] for a in answers] == alone
        assert [a["usage"]["completion_tokens"] for a in answers] == [35, 35]
        assert server.is_idle()


def test_health_fails_when_a_step_stalls() -> None:
    with toy_server() as server:
        assert server.client.get("/health").json() == {"status": "ok"}
        server.service.engine._thread._stall_after_s = 0.05
        server.executor.gate.clear()
        asking = threading.Thread(target=lambda: server.complete("x"))
        asking.start()
        until(lambda: server.client.get("/health").status_code == 503)
        assert "has not finished a step" in server.client.get("/health").json()["error"]["message"]
        server.executor.gate.set()
        asking.join()
        assert server.client.get("/health").status_code == 200


def test_models_and_version() -> None:
    with toy_server() as server:
        cards = server.client.get("/v1/models").json()["data"]
        assert [(c["id"], c["root"], c["max_model_len"]) for c in cards] == [
            ("alias", "alias", 512),
            ("toy", "alias", 512),
        ]
        assert server.client.get("/v1/models/toy").json() == cards[1]
        assert server.client.get("/v1/models/other").status_code == 404
        assert set(server.client.get("/version").json()) == {"version"}


def metrics_of(server: ToyServer) -> dict[str, float]:
    lines = server.client.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}


def test_metrics_count_what_was_served() -> None:
    with toy_server() as server:
        for _ in range(2):
            server.complete("a" * 40, max_tokens=5, temperature=0)
        values = metrics_of(server)
        named = {k.partition("{")[0]: v for k, v in values.items()}
        assert named["mansard:prompt_tokens_total"] == 80
        assert named["mansard:generation_tokens_total"] == 10
        assert named["mansard:time_to_first_token_seconds_count"] == 2
        assert named["mansard:inter_token_latency_seconds_count"] == 8
        assert named["mansard:request_time_per_output_token_seconds_count"] == 2
        assert named["mansard:prefix_cache_queries_total"] == 80
        assert named["mansard:prefix_cache_hits_total"] == 32
        assert named["mansard:num_requests_running"] == named["mansard:kv_cache_usage_perc"] == 0
        ended = 'mansard:request_success_total{finished_reason="length",model_name="toy"}'
        assert values[ended] == 2
        assert any(k.startswith('mansard:inter_token_latency_seconds_bucket{le="0.001"') for k in values)


def test_itl_sums_to_the_time_between_first_and_last_token() -> None:
    with toy_server(ToyExecutor(step_s=0.002)) as server:
        server.complete("abc", max_tokens=9, temperature=0)
        named = {k.partition("{")[0]: v for k, v in metrics_of(server).items()}
        between = named["mansard:e2e_request_latency_seconds_sum"] - named["mansard:time_to_first_token_seconds_sum"]
        assert named["mansard:inter_token_latency_seconds_sum"] == pytest.approx(between)
        assert named["mansard:request_time_per_output_token_seconds_sum"] == pytest.approx(between / 8)


def test_the_openapi_document_describes_the_bodies() -> None:
    with toy_server() as server:
        document = server.client.get("/openapi.json").json()
        for path in (CHAT, COMPLETIONS):
            schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            name = schema["$ref"].removeprefix("#/components/schemas/")
            assert "temperature" in document["components"]["schemas"][name]["properties"]


def test_a_lower_priority_number_runs_first() -> None:
    with toy_server(max_num_seqs=1, enable_priority=True) as server:
        server.executor.gate.clear()
        asking = []
        for priority in (0, 5, 1):
            body = {"prompt": chr(97 + priority), "priority": priority, "max_tokens": 2}
            asking.append(threading.Thread(target=server.post, args=(COMPLETIONS,), kwargs=body))
            asking[-1].start()
            num = len(asking)
            until(lambda num=num: server.service.engine.num_requests == num)
        server.executor.gate.set()
        for thread in asking:
            thread.join()
        order = list(dict.fromkeys(p.sequences[0].request.priority for p in server.executor.plans))
        assert order == [0, 1, 5]


def test_a_salt_keeps_tenants_apart() -> None:
    with toy_server() as server:

        def cached(salt: str | None) -> int:
            extra = {} if salt is None else {"cache_salt": salt}
            answer = server.complete("a" * 40, temperature=0, max_tokens=3, **extra)
            texts.add(answer["choices"][0]["text"])
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        texts: set[str] = set()
        assert [cached(salt) for salt in (None, "x", "y", "x", None, "y")] == [0, 0, 0, 32, 32, 32]
        assert len(texts) == 1
