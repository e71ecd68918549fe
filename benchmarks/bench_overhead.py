"""The load generator's own limits: how many requests a second it drives, and how late it sends and reads.

A trivial server in a second process answers every request at once with a fixed event stream, so what is measured is the
client (and the loopback). Run it on an idle machine; with two cores the server has one of them.

    python benchmarks/bench_overhead.py [--requests 10000] [--tokens 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

from mansard.bench.arrivals import arrival_times_s
from mansard.bench.http_client import Address, HttpClient
from mansard.bench.load import LoadPlan, PlannedRequest, run_load
from mansard.bench.metrics import queue_delay_s, ttft_s
from mansard.bench.openai_sender import AskOptions, OpenAiSender
from mansard.bench.prompts import PromptMaker, WordTokenizer
from mansard.bench.records import RequestRecord

LIMIT_S = 120.0


def answer(num_tokens: int) -> bytes:
    frames = [{"choices": [{"index": 0, "delta": {"content": " word"}}]}] * num_tokens
    frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    frames.append({"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": num_tokens}})
    body = b"".join(b"data: " + json.dumps(f).encode() + b"\n\n" for f in frames) + b"data: [DONE]\n\n"
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk


class TrivialServer(asyncio.Protocol):
    """Answers whatever ends a request body's JSON; reads no more than that."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer at once."""
        if data.endswith(b"}"):
            self.transport.write(self.reply)  # type: ignore[attr-defined]


def serve(pipe: Connection, num_tokens: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reply = answer(num_tokens)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        server = await loop.create_server(lambda: TrivialServer(reply), sock=listener)
        pipe.send(listener.getsockname()[1])
        async with server:
            await asyncio.wait_for(server.serve_forever(), LIMIT_S)

    asyncio.run(main())


async def drive(
    port: int, count: int, rate: float | None, concurrency: int
) -> tuple[list[RequestRecord], float, float]:
    maker = PromptMaker(WordTokenizer(), nonce=1)
    times = [0.0] * count if rate is None else arrival_times_s(rate, count, 1.0, 1).tolist()
    requests = [PlannedRequest(i, maker.make(i, 16), 4, times[i]) for i in range(count)]
    client = HttpClient(Address("127.0.0.1", port, False, ""))
    sender = OpenAiSender(client, AskOptions("x"))
    began, cpu = time.perf_counter(), time.process_time()
    records = await run_load(LoadPlan(requests, rate is not None, concurrency), sender)
    used, took = time.process_time() - cpu, time.perf_counter() - began
    client.close()
    return records, took, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, options.tokens), daemon=True)
    server.start()
    port = mine.recv()
    print(f"{platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, {options.requests} requests")
    ceilings, results = [], {}
    try:
        for _ in range(options.runs):
            records, took, used = asyncio.run(drive(port, options.requests, None, 64))
            assert all(r.succeeded and r.num_output_tokens == options.tokens for r in records)
            ceilings.append(len(records) / took)
            each = used / len(records) * 1e6
            print(f"closed loop, 64 at once: {ceilings[-1]:,.0f} requests/s, {each:.0f} us of CPU each")
        for rate in (500.0, 1000.0, 2000.0):
            records, took, used = asyncio.run(drive(port, int(rate * 3), rate, 1024))
            late = sorted(queue_delay_s(r) * 1e3 for r in records)
            first = sorted(1e3 * (ttft_s(r, "sent") or 0.0) for r in records)
            p99 = late[int(0.99 * (len(late) - 1))]
            results[f"{rate:.0f}"] = {"late_p50_ms": statistics.median(late), "late_p99_ms": p99, "cpu": used / took}
            late_ms, first_ms = statistics.median(late), statistics.median(first)
            print(
                f"open loop, {rate:,.0f}/s: got {len(records) / took:,.0f}/s, sent late by {late_ms:.2f} ms "
                f"(p99 {p99:.2f}), TTFT {first_ms:.2f} ms, {used / took:.0%} of a core"
            )
    finally:
        server.terminate()
        server.join()
    print(json.dumps({"requests_per_s": statistics.median(ceilings), "open_loop": results}))


if __name__ == "__main__":
    main()
