"""Runs an application on a socket until it is told to stop.

The first SIGINT or SIGTERM lets requests under way end and then returns normally, so the process exits with
0; the second stops at once. The socket is bound before a model is loaded, so that a port in use is known at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from mansard.runtime.async_engine import AsyncEngine

_LAST_ANSWERS_S = 5  # for the errors that end what did not end in time

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises: ValueError when the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = "choose another with --host or --port"
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror} ({remedy})") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address that clients connect to."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    app: FastAPI,
    engine: AsyncEngine,
    listener: socket.socket,
    drain_s: float,
    on_start: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until a signal says stop; returns whether all went gently, without a second signal.

    `on_start` is called when clients can connect, `on_stop` at the first signal. Requests that have not ended
    `drain_s` later are answered with an error.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=round(drain_s) + _LAST_ANSWERS_S,
    )
    server = _Server(config, engine, drain_s, on_start, on_stop)
    asyncio.run(server.serve(sockets=[listener]))
    return not server.force_exit


class _Server(uvicorn.Server):
    """uvicorn's server with our meaning of signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        drain_s: float,
        on_start: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain_s = drain_s
        self._ending: asyncio.Task[None] | None = None
        self._on_start = on_start
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gently at the first signal and at once at the second."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        else:
            self.should_exit = True
            self._on_stop()
            self._ending = asyncio.get_running_loop().create_task(self._end_late_requests())

    async def _end_late_requests(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._engine.stop()
