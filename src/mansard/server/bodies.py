"""Reading a request's body: type, size, JSON and fields are each refused in the error envelope."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from mansard.server.body import Body
from mansard.server.errors import ApiError, from_validation
from mansard.server.options import ServerOptions
from mansard.server.service import service_of

WARNING_HEADER = "x-mansard-warning"

_MAX_NAMES_REPORTED = 20

B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B]) -> B:
    """Return the body as `model`.

    Raises: ApiError 400 for what is not valid, 408 when it comes too slowly, 413 when it is too large, 415 when it
    is not JSON by its type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type is {kind!r}; it must be 'application/json'")
    data = await _read_limited(request, service_of(request).options)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error, data) from error


def warnings(body: Body) -> dict[str, str]:
    """Return the header that reports the fields the server does not know, if there are any."""
    names = [re.sub(r"[^\w.\[\]-]", "?", name, flags=re.ASCII)[:80] for name in body.unknown_fields()]
    if not names:
        return {}
    more = f" and {len(names) - _MAX_NAMES_REPORTED} more" if len(names) > _MAX_NAMES_REPORTED else ""
    return {WARNING_HEADER: f"unknown fields ignored: {', '.join(names[:_MAX_NAMES_REPORTED])}{more}"}


async def _read_limited(request: Request, options: ServerOptions) -> bytes:
    """Read the body without ever holding more than the limit, nor waiting for longer than another."""
    limit = options.max_body_bytes
    data = bytearray()
    try:
        async with asyncio.timeout(options.body_timeout_s):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    message = f"the body is larger than {limit:,} bytes ({limit / (1 << 20):.3g} MiB)"
                    raise ApiError(413, message, code="body_too_large")
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {options.body_timeout_s:g} s", code="timeout") from error
    except ClientDisconnect as error:
        raise ApiError(499, "the client left before its body had arrived") from error
    return bytes(data)
