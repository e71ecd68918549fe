"""A real server on 127.0.0.1 around a toy model, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from toy_model import ToyExecutor, toy_model

from mansard.runtime.model import EngineOptions
from mansard.server.app import create_app
from mansard.server.options import ServerOptions
from mansard.server.run import bind, configuration, url_of
from mansard.server.service import Service

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass
class ToyServer:
    url: str
    client: httpx.Client
    service: Service
    executor: ToyExecutor

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def chat(self, content: str = "hello", **body: Any) -> dict[str, Any]:
        answer = self.post(CHAT, messages=[{"role": "user", "content": content}], **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
        answer = self.post(COMPLETIONS, prompt=prompt, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def frames(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return a stream's events; the last must be [DONE], which is left out."""
        answer = self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def is_idle(self) -> bool:
        stats = self.service.engine.stats()
        left = stats.num_running + stats.num_waiting + stats.num_used_blocks
        return left + self.service.engine.num_requests + len(self.service.metrics._arrivals) == 0


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


@contextmanager
def toy_server(
    executor: ToyExecutor | None = None, server: dict[str, Any] | None = None, **options: Any
) -> Iterator[ToyServer]:
    executor = executor or ToyExecutor()
    model_options = {k: options.pop(k) for k in ("num_blocks", "max_model_len", "template") if k in options}
    model = toy_model(executor, **model_options)
    allowed = ServerOptions(names=("alias",), drain_s=1.0, **(server or {}))
    app = create_app(model, EngineOptions(**options), allowed)
    listener = bind("127.0.0.1", 0)
    running = uvicorn.Server(configuration(app, drain_s=1.0))
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listener])))
    thread.start()
    until(lambda: running.started)
    url = url_of(listener)
    with httpx.Client(base_url=url, timeout=30.0) as client:
        try:
            yield ToyServer(url, client, app.state.service, executor)
        finally:
            executor.gate.set()
            client.close()
            running.should_exit = True
            thread.join()
            if model.chat_template is not None:
                model.chat_template.close()
