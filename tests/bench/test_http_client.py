"""The client's HTTP and event-stream readers against every way the network may cut bytes, and a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.bench.http_client import Address, Exchange, HttpClient
from mansard.bench.http_response import MAX_HEAD_BYTES, HttpError, ResponseReader
from mansard.bench.sse import EventReader

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=1\r\nhello\r\n6\r\n world\r\n0\r\nA: b\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Type: text/plain\r\n\r\nhello world"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


@given(st.sampled_from([CHUNKED, SIZED, b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED]), st.lists(st.integers(0, 130)))
def test_a_body_is_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    reader = ResponseReader()
    assert b"".join(reader.feed(p) for p in pieces(data, cuts)) == b"hello world"
    assert reader.is_done and reader.keeps_open and reader.status == 200


@given(st.lists(st.integers(0, 60)))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    data = b": keep-alive\n\ndata: {}\r\n\r\nevent: x\ndata:a\ndata: b\n\ndata: [DONE]\n\ndata: never ended"
    reader = EventReader()
    events = [e for p in pieces(data, cuts) for e in reader.feed(p)]
    assert events == [b"{}", b"a\nb", b"[DONE]"]


def test_a_body_until_the_close() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nhello") == b"hello"
    assert not reader.is_done
    reader.close()
    assert reader.is_done


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 10_000,
        b"x" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(HttpError):
        ResponseReader().feed(data)


def test_a_close_in_the_middle_is_an_error() -> None:
    for data in (SIZED[:-1], CHUNKED[:-7], b""):
        reader = ResponseReader()
        reader.feed(data)
        with pytest.raises(HttpError, match="closed"):
            reader.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, False, "")),
        ("localhost:9/v1/", ("localhost", 9, False, "")),
        ("https://[::1]/api/v1", ("::1", 443, True, "/api")),
    ],
)
def test_addresses(url: str, expected: tuple[str, int, bool, str]) -> None:
    address = Address.parse(url)
    assert (address.host, address.port, address.is_tls, address.prefix) == expected


@pytest.mark.parametrize("url", ["ftp://x", "http://", ""])
def test_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Address.parse(url)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


async def ask(handler: Handler, count: int = 1, timeout_s: float | None = 5.0) -> list[bytes]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)  # type: ignore[arg-type]
    client = HttpClient(Address("127.0.0.1", server.sockets[0].getsockname()[1], False, ""))
    bodies = []
    try:
        for _ in range(count):
            body = bytearray()
            exchange = Exchange(lambda status, headers: None, lambda data, now_s, body=body: body.extend(data))
            await client.send("POST", "/x", b"{}", exchange, timeout_s)
            bodies.append(bytes(body))
    finally:
        client.close()
        server.close()
    return bodies


def test_connections_are_kept_and_replaced_when_the_server_closed_them() -> None:
    opened = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        for _ in range(2):  # two answers a connection, then it is closed without a word
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:")
            assert await reader.readexactly(2) == b"{}"
            writer.write(SIZED)
            await writer.drain()
        writer.close()

    assert asyncio.run(ask(handler, 5)) == [b"hello world"] * 5
    assert opened == 3


def test_a_connection_that_breaks_or_hangs_is_an_error() -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED[:-3])
        writer.close()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with pytest.raises(HttpError):
        asyncio.run(ask(breaks))
    with pytest.raises(TimeoutError):
        asyncio.run(ask(hangs, timeout_s=0.05))
