"""Soak: a server under everything at once, for as long as one likes; exits with 1 when anything is not as it must be.

    python benchmarks/soak.py --seconds 600          the real small model
    python benchmarks/soak.py --seconds 120 --short  the form for CI

32 clients send chats and completions of random length, plain and streamed, many with shared prefixes; some leave in
the middle, half-close their socket or send rubbish. The KV pool is so small that sequences are preempted all the time.
What must hold: only the intended 4xx; every greedy answer equals the one of a run alone; afterwards no block is in
use; memory stays flat; while an 8k prompt is filled, others wait no longer than one budgeted step between two tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from mansard.runtime.model import EngineOptions, LoadedModel, load
from mansard.server.app import create_app
from mansard.server.options import ServerOptions
from mansard.server.run import bind, configuration, url_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUM_CLIENTS = 32
RUBBISH: tuple[tuple[bytes, int], ...] = (
    (b"", 400),
    (b"{", 400),
    (b'{"prompt": 5}', 400),
    (b'{"prompt": "x", "temperature": "hot"}', 400),
    (b'{"prompt": "x", "logit_bias": {"99999999": 1}}', 400),
    (b'{"prompt": "x", "guided_regex": "("}', 400),
    (b'{"prompt": "x", "model": "nobody"}', 404),
    (b'{"prompt": "x", "max_tokens": -1}', 400),
)
WORDS = ("the", "roof", "of", "a", "house", "has", "two", "slopes", "one", "steep", "and", "one", "flat", "and", "rain")
RSS_TOLERANCE = 0.02
PAUSE_TOLERANCE = 1.5  # of the longest step: its tokens must still travel


@dataclass
class Tally:
    """What happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss_bytes: list[tuple[float, int]] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Note what must not be."""
        self.counts["faults"] += 1
        if len(self.faults) < 20:
            self.faults.append(text)


@dataclass
class Running:
    """A server in this process and how it is reached."""

    url: str
    client: httpx.AsyncClient
    service: Any

    def is_idle(self) -> bool:
        """Say whether nothing is under way and no block is in use."""
        stats = self.service.engine.stats()
        return not (stats.num_running + stats.num_waiting + stats.num_used_blocks + self.service.engine.num_requests)


@asynccontextmanager
async def serving(model: LoadedModel, options: EngineOptions) -> AsyncIterator[Running]:
    """Serve `model` on a free port."""
    app = create_app(model, options, ServerOptions(names=("soak",)))
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(configuration(app, drain_s=5.0))
    server.capture_signals = _no_signals  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url_of(listener), timeout=600.0, limits=limits) as client:
        yield Running(url_of(listener), client, app.state.service)
    server.should_exit = True
    await task


class _no_signals:  # noqa: N801  (stands in for a method)
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def request_bodies(draw: random.Random, count: int, most_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Return greedy requests of random length; half of them begin with one of three shared prefixes."""
    prefixes = [" ".join(draw.choices(WORDS, k=60)) for _ in range(3)]
    bodies: list[tuple[str, dict[str, Any]]] = []
    for i in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.randrange(3, 60)))
        prompt = f"{draw.choice(prefixes)} {text}" if i % 2 else text
        body: dict[str, Any] = {"temperature": 0, "max_tokens": draw.randrange(1, most_tokens)}
        if i % 3 == 0:
            bodies.append((CHAT, {**body, "messages": [{"role": "user", "content": prompt}]}))
        else:
            bodies.append((COMPLETIONS, {**body, "prompt": prompt, "ignore_eos": i % 3 == 1}))
    return bodies


def text_of(choice: dict[str, Any]) -> str:
    """Return a choice's text, whichever API made it."""
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


async def plain(server: Running, path: str, body: dict[str, Any]) -> str:
    """Return the text of a plain answer."""
    answer = await server.client.post(path, json=body)
    answer.raise_for_status()
    return text_of(answer.json()["choices"][0])


async def streamed(server: Running, path: str, body: dict[str, Any]) -> str:
    """Return the text of a streamed answer."""
    pieces = [piece async for piece in stream_pieces(server, path, body)]
    return "".join(pieces)


async def stream_pieces(server: Running, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
    """Yield the pieces of a streamed answer."""
    async with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if not data or data.startswith(":") or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            choice = event["choices"][0]
            yield choice["text"] if "text" in choice else choice["delta"].get("content", "")


class Soak:
    """The clients of one run."""

    def __init__(self, server: Running, bodies: list[tuple[str, dict[str, Any]]], alone: list[str], seed: int) -> None:
        self._server = server
        self._bodies = bodies
        self._alone = alone
        self._seed = seed
        self.tally = Tally()

    async def run(self, seconds: float) -> None:
        """Let all clients go on for so long."""
        end = time.monotonic() + seconds
        watching = asyncio.create_task(self._watch_memory(end))
        await asyncio.gather(*(self._client(number, end) for number in range(NUM_CLIENTS)))
        await watching

    async def _client(self, number: int, end: float) -> None:
        draw = random.Random(self._seed * 1000 + number)
        while time.monotonic() < end:
            action = draw.choices([self._ask, self._leave, self._half_close, self._send_rubbish], [80, 8, 4, 8])[0]
            try:
                await action(draw)
            except Exception as error:
                self.tally.fault(f"{action.__name__}: {type(error).__name__}: {error}")

    async def _ask(self, draw: random.Random) -> None:
        index = draw.randrange(len(self._bodies))
        path, body = self._bodies[index]
        is_streamed = draw.random() < 0.5
        text = await (streamed if is_streamed else plain)(self._server, path, body)
        self.tally.counts["streamed" if is_streamed else "plain"] += 1
        if text != self._alone[index]:
            self.tally.fault(f"answer {index} differs from the one alone: {text[:60]!r} / {self._alone[index][:60]!r}")

    async def _leave(self, draw: random.Random) -> None:
        """Begin a long request, streamed or not, and go away in the middle."""
        _, writer = await self._open(
            draw, {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": draw.random() < 0.5}
        )
        await asyncio.sleep(draw.random() * 0.5)
        writer.transport.abort() if draw.random() < 0.5 else writer.close()
        self.tally.counts["left"] += 1

    async def _half_close(self, draw: random.Random) -> None:
        """End our half of the connection: the server may answer or take it for gone, and must do one of the two."""
        reader, writer = await self._open(draw, {"prompt": "x", "max_tokens": 5})
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 600)
        writer.close()
        self.tally.counts["half-closed"] += 1

    async def _open(
        self, draw: random.Random, body: dict[str, Any]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        data = json.dumps({**body, "temperature": 0}).encode()
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + data)
        await writer.drain()
        return reader, writer

    async def _send_rubbish(self, draw: random.Random) -> None:
        data, status = draw.choice(RUBBISH)
        headers = {"content-type": "application/json"}
        answer = await self._server.client.post(COMPLETIONS, content=data, headers=headers)
        self.tally.counts["rubbish"] += 1
        if answer.status_code != status:
            self.tally.fault(f"{data!r} was answered {answer.status_code}, not {status}: {answer.text[:100]}")

    async def _watch_memory(self, end: float) -> None:
        begin = time.monotonic()
        while (now := time.monotonic()) < end:
            self.tally.rss_bytes.append((now - begin, rss_bytes()))
            await asyncio.sleep(min(1.0, max(0.0, end - now)))


def rss_bytes() -> int:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


async def longest_pause(server: Running, num_prompt_tokens: int) -> dict[str, float]:
    """Return the longest gap of a decoding stream while a long prompt is filled beside it, and the longest step."""
    # Letters only, so that every token has text to send: half a character would wait for the next token.
    body = {"prompt": "go on", "temperature": 0, "max_tokens": 1000, "guided_regex": "[a-z ]{1,9000}!"}
    arrivals: list[float] = []
    steps: list[float] = []
    server.service.engine._thread._on_step = steps.append

    async def decode() -> None:
        async for _ in stream_pieces(server, COMPLETIONS, body):
            arrivals.append(time.perf_counter())

    decoding = asyncio.create_task(decode())
    while len(arrivals) < 20:
        await asyncio.sleep(0.01)
    draw = random.Random(1)
    long = {"prompt": [draw.randrange(100, 1000) for _ in range(num_prompt_tokens)], "max_tokens": 1, "temperature": 0}
    num_steps, began = len(steps), time.perf_counter()
    await server.client.post(COMPLETIONS, json=long)
    prefill_s = time.perf_counter() - began
    decoding.cancel()
    beside = [b - a for a, b in pairwise(arrivals) if b >= began]
    return {
        "longest_gap_s": max(beside),
        "mean_gap_s": sum(beside) / len(beside),
        "longest_step_s": max(steps[num_steps:]),
        "prefill_s": prefill_s,
    }


def judge(tally: Tally, idle: bool, num_preemptions: int) -> list[str]:
    """Return what is not as it must be."""
    wrong = list(tally.faults)
    if not idle:
        wrong.append("blocks or requests are left when everyone has gone")
    if not num_preemptions:
        wrong.append("no sequence was preempted: the pool is too large to test anything")
    growth = rss_growth(tally.rss_bytes)
    if growth > RSS_TOLERANCE:
        wrong.append(f"memory grew by {growth:.1%} after warm-up; at most {RSS_TOLERANCE:.0%} may be")
    return wrong


def rss_growth(samples: list[tuple[float, int]]) -> float:
    """Return how much memory grew between the second quarter's median and the last quarter's."""
    quarter = len(samples) // 4
    if quarter < 2:
        return 0.0
    early, late = (_median(part) for part in (samples[quarter : 2 * quarter], samples[-quarter:]))
    return late / early - 1.0


def _median(samples: list[tuple[float, int]]) -> int:
    return sorted(value for _, value in samples)[len(samples) // 2]


async def soak(
    model: LoadedModel, options: EngineOptions, seconds: float, num_bodies: int, most_tokens: int, seed: int
) -> dict[str, Any]:
    """Run it all; return what was found."""
    bodies = request_bodies(random.Random(seed), num_bodies, most_tokens)
    async with serving(model, options) as server:
        alone = [await plain(server, path, body) for path, body in bodies]
        await asyncio.gather(*(server.client.post(path, json=body) for path, body in bodies))  # fill every cache once
        run = Soak(server, bodies, alone, seed)
        for data, _ in RUBBISH:
            await server.client.post(COMPLETIONS, content=data, headers={"content-type": "application/json"})
        began = time.monotonic()
        await run.run(seconds)
        deadline = time.monotonic() + 30
        while not server.is_idle() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        stats = server.service.engine.stats()
        return {
            "seconds": round(time.monotonic() - began, 1),
            "requests": dict(run.tally.counts),
            "num_preemptions": stats.num_preemptions,
            "num_steps": stats.num_steps,
            "prefix_hit_rate": round(stats.num_prefix_hit_tokens / max(1, stats.num_prefix_query_tokens), 3),
            "rss_mib": round(rss_bytes() / (1 << 20), 1),
            "rss_growth": round(rss_growth(run.tally.rss_bytes), 4),
            "wrong": judge(run.tally, server.is_idle(), stats.num_preemptions),
        }


async def pauses(model: LoadedModel, options: EngineOptions, num_prompt_tokens: int) -> dict[str, float]:
    """Measure how long a decoding stream waits while a long prompt is filled."""
    async with serving(model, options) as server:
        return {key: round(value, 4) for key, value in (await longest_pause(server, num_prompt_tokens)).items()}


def main() -> int:
    """Run the soak with the packaged model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--short", action="store_true", help="fewer and shorter requests, no long prefill")
    parser.add_argument("--num-blocks", type=int, default=40, help="of 16 tokens: a pool for a handful of sequences")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}: {' '.join(sys.argv)}")
    num_bodies, most_tokens = (24, 24) if given.short else (60, 64)
    options = EngineOptions(num_blocks=given.num_blocks, max_model_len=512)
    found = asyncio.run(soak(load(given.model, options), options, given.seconds, num_bodies, most_tokens, given.seed))
    if not given.short:
        roomy = EngineOptions()
        found["pauses"] = beside = asyncio.run(pauses(load(given.model, roomy), roomy, 8000))
        if beside["longest_gap_s"] > PAUSE_TOLERANCE * beside["longest_step_s"]:
            found["wrong"].append(
                f"a decoding stream paused for longer than a step while a prompt was filled: {beside}"
            )
    for line in found["wrong"]:
        print(f"WRONG: {line}")
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
