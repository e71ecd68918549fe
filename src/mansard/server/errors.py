"""OpenAI's error envelope, for everything that can go wrong at the HTTP boundary.

Clients' SDKs parse `{"error": {"message", "type", "param", "code"}}`; anything else (422 arrays, HTML pages,
bare strings) reaches their users as noise. Source: OpenAI API reference, error codes.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from mansard.runtime.parameter_error import ParameterError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_MESSAGES = {404: "no such path: {method} {path}", 405: "{method} is not allowed on {path}"}


class ApiError(Exception):
    """An answer other than success: an HTTP status and the fields of the envelope."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def envelope(self) -> dict[str, Any]:
        """Return the JSON body of the answer."""
        kind = "internal_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.envelope(), self.status, self.headers)


def from_validation(error: ValidationError, data: bytes) -> ApiError:
    """Turn the first thing pydantic found wrong in the body `data` into a 400 that names the parameter."""
    first = min(error.errors(include_url=False, include_context=False), key=lambda e: len(e["loc"]))
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    name = _parameter_name(first["loc"], first["type"] == "missing", json.loads(data))
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}: {message}" if name else message, param=name, code=first["type"])


def _parameter_name(location: tuple[int | str, ...], is_missing: bool, data: Any) -> str | None:
    """Return a field's path the way OpenAI writes it: `messages[0].content`.

    A location also names the members of unions that were tried; what is no part of the body is left out.
    """
    name = ""
    for place, part in enumerate(location):
        if isinstance(part, int) and isinstance(data, list) and part < len(data):
            name, data = f"{name}[{part}]", data[part]
        elif isinstance(part, str) and isinstance(data, dict):
            if part not in data and not (is_missing and place == len(location) - 1):
                continue
            name, data = f"{name}.{part}" if name else part, data.get(part)
    return name or None


def install(app: FastAPI) -> None:
    """Answer every exception of `app` in the envelope."""

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(ParameterError)
    async def _parameter_error(_: Request, error: ParameterError) -> JSONResponse:
        return ApiError(400, str(error), param=error.param, code=error.code).response()

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        text = _MESSAGES.get(error.status_code, str(error.detail))
        message = text.format(method=request.method, path=request.url.path)
        headers = dict(error.headers) if error.headers else None
        return ApiError(error.status_code, message, headers=headers).response()

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return ApiError(500, f"internal error ({type(error).__name__})").response()
