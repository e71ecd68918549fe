"""`mansard demo`: the whole way once: a server starts, one streamed chat request is answered, the server
stops.

The server is a process of its own, reached over HTTP as any client would reach it, so the numbers are a
client's.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.commands import options
from mansard.commands.speed import Stopwatch, milliseconds
from mansard.runtime.model import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.console import Console

HOST = "127.0.0.1"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
QUESTION = "In two sentences, why does a mansard roof have two slopes?"


def demo(
    model: options.Model = DEFAULT_MODEL,
    question: Annotated[str, typer.Option(help="What to ask.")] = QUESTION,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 128,
) -> None:
    """Start a server, ask it one question, show its speed."""
    from rich.console import Console

    console = Console(highlight=False)
    with _server(model, console) as server:
        console.print(f"[cyan]ask[/]     POST http://{HOST}:{server.port}/v1/chat/completions")
        console.print(f"[cyan]user[/]    {question}")
        console.print("[cyan]model[/]   ", end="")
        watch = Stopwatch()
        num_prompt_tokens = 0
        for event in ask(server.port, question, max_tokens):
            if event.get("usage"):
                num_prompt_tokens = event["usage"]["prompt_tokens"]
                watch.num_tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                text = choice["delta"].get("content", "")
                watch.count(1 if text else 0)
                console.out(text, end="", highlight=False)
        console.print()
        _show(console, watch, num_prompt_tokens, server.start_s)


@dataclass(frozen=True, slots=True)
class _Server:
    port: int
    start_s: float  # from the process's start to a healthy answer


@contextmanager
def _server(model: str, console: Console) -> Iterator[_Server]:
    """Run `mansard serve` on a free port until the block ends."""
    began = time.perf_counter()
    port = _free_port()
    command = [sys.executable, "-m", "mansard", "serve", model, "--host", HOST, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        with console.status(f"starting a server for {model} on {HOST}:{port}"):
            _wait_until_healthy(process, port)
        server = _Server(port, time.perf_counter() - began)
        console.print(f"[cyan]server[/]  mansard serve {model} on {HOST}:{port}, ready in {server.start_s:.2f} s")
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[str], port: int) -> None:
    """Poll /health.

    Raises: ValueError with the server's last words when it ends, or after a time limit.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            _, said = process.communicate()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise ValueError(f"the server ended with status {process.returncode}: {last[0]}")
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()
    raise ValueError(f"the server was not healthy after {START_LIMIT_S:.0f} s")


def ask(port: int, question: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Send one streamed chat request and yield its events.

    Raises: ValueError with the server's message when it refuses.
    """
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(json.loads(response.read())["error"]["message"])
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                return
            if not data or data.startswith(":"):
                continue
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise ValueError(event["error"]["message"])
            yield event
    finally:
        connection.close()


def _show(console: Console, watch: Stopwatch, num_prompt_tokens: int, start_s: float) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for label in ("start", "prompt", "output", "TTFT", "TPOT", "tokens/s"):
        table.add_column(label, justify="right")
    tpot_s = watch.tpot_s
    table.add_row(
        f"{start_s:.2f} s",
        f"{num_prompt_tokens} tokens",
        f"{watch.num_tokens} tokens",
        "-" if watch.ttft_s is None else milliseconds(watch.ttft_s),
        "-" if tpot_s is None else milliseconds(tpot_s),
        "-" if tpot_s is None else f"{1 / tpot_s:,.1f}",
    )
    console.print(table)
