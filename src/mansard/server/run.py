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
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI

from mansard.server.service import Service

_LAST_ANSWERS_S = 5  # for the errors that end what did not end in time

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises: ValueError when the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it; without, a stream's first tokens wait for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = "choose another with --host or --port"
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror} ({remedy})") from error
    return listener


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a certificate and its key; `ca_file`: clients must show a certificate that it signed."""

    certificate: str
    key: str | None = None
    ca_file: str | None = None


def url_of(listener: socket.socket, tls: Tls | None = None) -> str:
    """Return the address that clients connect to."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def configuration(app: FastAPI, drain_s: float, tls: Tls | None = None) -> uvicorn.Config:
    """Return how uvicorn serves `app`.

    Raises: OSError or ValueError when a certificate cannot be used.
    """
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key, "ssl_ca_certs": tls.ca_file}
        files["ssl_cert_reqs"] = ssl.CERT_NONE if tls.ca_file is None else ssl.CERT_REQUIRED
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=round(drain_s) + _LAST_ANSWERS_S,
        **files,
    )
    try:
        config.load()
    except ssl.SSLError as error:
        raise ValueError(f"the TLS certificate or key cannot be used: {error}") from error
    return config


def run(
    app: FastAPI,
    listener: socket.socket,
    tls: Tls | None = None,
    on_start: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until a signal says stop; returns whether all went gently, without a second signal.

    `on_start` is called when clients can connect, `on_stop` at the first signal. Requests that have not ended
    `drain_s` of the server's options later are answered with an error.
    """
    service: Service = app.state.service
    config = configuration(app, service.options.drain_s, tls)
    server = _Server(config, service, on_start, on_stop)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    return not server.force_exit


class _Server(uvicorn.Server):
    """uvicorn's server with our meaning of signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        on_start: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._service = service
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
            self._service.is_draining = True
            self._on_stop()
            self._ending = asyncio.get_running_loop().create_task(self._end_late_requests())

    async def _end_late_requests(self) -> None:
        await asyncio.sleep(self._service.options.drain_s)
        await self._service.engine.stop()
