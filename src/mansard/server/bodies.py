"""Reading a request's body: type, size, JSON and fields are each refused in the error envelope."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from mansard.server.errors import ApiError, from_validation
from mansard.server.protocol import Body

MAX_BODY_BYTES = 16 << 20
WARNING_HEADER = "x-mansard-warning"

_MAX_NAMES_REPORTED = 20

B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B]) -> B:
    """Return the body as `model`.

    Raises: ApiError 400 for what is not valid, 413 when it is too large, 415 when it is not JSON by its type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type is {kind!r}; it must be 'application/json'")
    data = await _read_limited(request)
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


def body_schema(model: type[Body]) -> dict[str, Any]:
    """Return what the OpenAPI document says of a route whose body is read by `read_body`."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _read_limited(request: Request) -> bytes:
    """Read the body without ever holding more than the limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", code="body_too_large")
    return bytes(data)
