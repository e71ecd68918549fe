"""A server as a process: signals drain it and it exits with 0; a second one stops it at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toy_server import until

from mansard.server.run import bind

TESTS = Path(__file__).parents[1]
SCRIPT = """
import sys
from toy_model import ToyExecutor, toy_model
from mansard.runtime.model import EngineOptions
from mansard.server.app import create_app
from mansard.server.options import ServerOptions
from mansard.server.run import bind, run, url_of
step_s, drain_s = map(float, sys.argv[1:])
app = create_app(toy_model(ToyExecutor(step_s=step_s)), EngineOptions(), ServerOptions(drain_s=drain_s))
listener = bind("127.0.0.1", 0)
said = lambda text: print(text, flush=True)
gently = run(app, listener, None, lambda: said(url_of(listener)), lambda: said("stopping"))
sys.exit(0 if gently else 1)
"""


@contextmanager
def process(step_s: float, drain_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(step_s), str(drain_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert running.stdout is not None
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.communicate()


def ask(url: str, answers: list[Any], max_tokens: int) -> threading.Thread:
    """Post a completion in a thread; its status and body end up in `answers`."""
    body = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}

    def post() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", data, headers)) as answer:
                answers.append((answer.status, answer.read()))
        except urllib.error.HTTPError as error:
            answers.append((error.code, error.read()))
        except OSError as error:
            answers.append((0, str(error)))

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def running_requests(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("mansard:num_requests_running{"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_requests_end_and_exits_0(number: signal.Signals) -> None:
    answers: list[Any] = []
    with process(step_s=0.01, drain_s=30) as (running, url):
        asking = ask(url, answers, max_tokens=60)
        until(lambda: running_requests(url) == 1)
        running.send_signal(number)
        asking.join()
        assert running.wait(timeout=20) == 0
    status, body = answers[0]
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 60


def test_an_idle_server_stops_at_once_with_0() -> None:
    with process(step_s=0, drain_s=30) as (running, _):
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=20) == 0


def test_what_does_not_end_in_time_gets_an_error() -> None:
    answers: list[Any] = []
    with process(step_s=0.05, drain_s=0.3) as (running, url):
        asking = ask(url, answers, max_tokens=400)
        until(lambda: running_requests(url) == 1)
        running.send_signal(signal.SIGTERM)
        asking.join()
        assert running.wait(timeout=20) == 0
    status, body = answers[0]
    assert status == 500 and "stopped" in json.loads(body)["error"]["message"]


def test_a_second_signal_stops_at_once() -> None:
    answers: list[Any] = []
    with process(step_s=0.02, drain_s=60) as (running, url):
        asking = ask(url, answers, max_tokens=450)
        until(lambda: running_requests(url) == 1)
        running.send_signal(signal.SIGTERM)
        assert running.stdout is not None
        assert running.stdout.readline().strip() == "stopping"
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=6) == 1  # the request alone would take 9 s
        asking.join()


def test_tokens_do_not_wait_to_be_sent_together() -> None:
    """On kept-alive connections the first tokens arrived in one lump, 40 ms late: Nagle's algorithm was on."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    with listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert client.fileno() >= 0
