"""Gate: what every request passes before its endpoint: an id, a key, a place in the queue, a line in the log.

Plain ASGI, because a middleware of the framework's costs a task and two queues a request, and hides that a
client has left.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mansard.server.access_log import log_request
from mansard.server.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready", "/version"})  # for probes, which have no keys
REQUEST_ID = "x-request-id"

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUEUED_PREFIXES = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize")
_RETRY_AFTER_S = 1


class Gate:
    """Wraps an application; `num_waiting` tells how many sequences wait in the engine.

    api_keys: one of them must come as a bearer token, unless there are none. max_open: requests under way at once.
    """

    def __init__(
        self, app: ASGIApp, api_keys: Sequence[str], max_open: int, max_waiting: int, num_waiting: Callable[[], int]
    ) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in api_keys]
        self._max_open = max_open
        self._max_waiting = max_waiting
        self._num_waiting = num_waiting
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with 401 or 429."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        log: dict[str, Any] = {}
        scope.setdefault("state", {})["log"] = log
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        try:
            await self._serve(scope, receive, send_marked, headers)
        finally:
            log_request(request_id, scope["method"], scope["path"], status, time.perf_counter() - start, log)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, headers: MutableMapping[bytes, bytes]) -> None:
        if self._digests and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
            refusal = self._check_key(headers.get(b"authorization", b""))
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        if not scope["path"].startswith(_QUEUED_PREFIXES):
            await self._app(scope, receive, send)
            return
        if self._num_open >= self._max_open or self._num_waiting() > self._max_waiting:
            await _too_many(self._num_open).response()(scope, receive, send)
            return
        self._num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1

    def _check_key(self, authorization: bytes) -> ApiError | None:
        """Compare with every key, in the same time whichever of them matches and how far."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() == b"bearer" and any(matches):
            return None
        headers = {"www-authenticate": "Bearer"}
        return ApiError(
            401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key", headers=headers
        )


def _digest(key: bytes) -> bytes:
    """Return what keys are compared by, of one length for all."""
    return hashlib.sha256(key).digest()


def _request_id(headers: MutableMapping[bytes, bytes]) -> str:
    """Return the client's id for a request if it is sane, or else a new one."""
    given = headers.get(REQUEST_ID.encode(), b"").decode("latin-1")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def _too_many(num_open: int) -> ApiError:
    message = f"the queue is full ({num_open} requests under way); try again later"
    return ApiError(429, message, code="queue_full", headers={"retry-after": str(_RETRY_AFTER_S)})
