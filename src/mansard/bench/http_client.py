"""HttpClient: many requests at once over kept connections, with the time of each read.

A general client costs a millisecond of processor a request, which at a thousand requests a second is the load
generator measuring itself. This one is an asyncio protocol over `ResponseReader`: the time of a frame is taken in the
callback in which its bytes arrive. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mansard.bench.http_response import HttpError, ResponseReader


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is; `prefix` stands before every path."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read `http://host:port/prefix`; a trailing `/v1` belongs to the API and is dropped.

        Raises: ValueError for anything else.
        """
        given = url if "://" in url else f"http://{url}"
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no server's address; write http://HOST:PORT")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, prefix)

    @property
    def host_header(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Exchange:
    """One request under way: what happens to its answer; subclasses or fields say."""

    __slots__ = ("done", "on_body", "on_head", "reader")

    def __init__(
        self, on_head: Callable[[int, Mapping[str, str]], None], on_body: Callable[[bytes, float], None]
    ) -> None:
        self.reader = ResponseReader()
        self.on_head = on_head
        self.on_body = on_body
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()


class _Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        now_s, exchange = self._now(), self.exchange
        if exchange is None:
            self.close()  # an answer to nothing
            return
        reader = exchange.reader
        had_head = reader.has_head
        try:
            body = reader.feed(data)
            if reader.has_head and not had_head:
                exchange.on_head(reader.status, reader.headers)
            if body:
                exchange.on_body(body, now_s)
        except Exception as error:  # whoever waits must learn of it, whatever it is
            self._finish(error)
            self.close()
            return
        if reader.is_done:
            self._finish(now_s)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self.exchange is None:
            return
        try:
            self.exchange.reader.close()
            self._finish(self._now())
        except HttpError as broken:
            self._finish(error or broken)

    def start(self, exchange: Exchange, data: bytes) -> None:
        assert self.transport is not None
        self.exchange = exchange
        self.transport.write(data)

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:
            self.transport.close()

    def _finish(self, outcome: float | Exception) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None or exchange.done.done():
            return
        if isinstance(outcome, Exception):
            exchange.done.set_exception(outcome)
        else:
            exchange.done.set_result(outcome)


class HttpClient:
    """Sends requests to one server; connections are kept and made as needed.

    now: the clock that stamps reads, the event loop's own by default. verify: whether certificates are checked.
    """

    def __init__(self, address: Address, headers: Mapping[str, str] | None = None, *, verify: bool = True) -> None:
        self.address = address
        self._headers = dict(headers or {})
        self._idle: deque[_Connection] = deque()
        self._tls = _tls(verify) if address.is_tls else None

    async def send(self, method: str, path: str, body: bytes, exchange: Exchange, timeout_s: float | None) -> float:
        """Send one request and return when its answer ended, on the loop's clock.

        A kept connection that the server has meanwhile closed is replaced once, if nothing was answered on it.
        Raises: OSError when the connection fails, TimeoutError, HttpError when the answer is no HTTP.
        """
        data = self._head(method, path, len(body)) + body
        async with asyncio.timeout(timeout_s):
            connection, is_fresh = await self._connection()
            try:
                return await self._exchange(connection, exchange, data)
            except (OSError, HttpError):
                if is_fresh or exchange.reader.has_head:
                    raise
                exchange.done = asyncio.get_running_loop().create_future()
                exchange.reader = ResponseReader()
            return await self._exchange(await self._connect(), exchange, data)

    async def fetch(self, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Return the status and body of a GET."""
        body = bytearray()
        exchange = Exchange(lambda status, headers: None, lambda data, now_s: body.extend(data))
        await self.send("GET", path, b"", exchange, timeout_s)
        return exchange.reader.status, bytes(body)

    def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, connection: _Connection, exchange: Exchange, data: bytes) -> float:
        kept = False
        try:
            connection.start(exchange, data)
            ended_s = await exchange.done
            kept = exchange.reader.keeps_open and connection.is_open
            return ended_s
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.exchange = None
                connection.close()

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, False
        return await self._connect(), True

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        address = self.address
        _, protocol = await loop.create_connection(
            lambda: _Connection(loop.time), address.host, address.port, ssl=self._tls
        )
        return protocol

    def _head(self, method: str, path: str, length: int) -> bytes:
        lines = [f"{method} {self.address.prefix}{path} HTTP/1.1", f"Host: {self.address.host_header}"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if method != "GET":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
