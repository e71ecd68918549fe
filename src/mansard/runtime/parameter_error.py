"""ParameterError: a request's fault, with the parameter's name apart from the text.

What a request may ask for is checked by `mansard.core.admission`, whose messages begin with the parameter's
name; an API also wants that name as a field of its own.
"""

from __future__ import annotations

from dataclasses import fields

from mansard.core.types import SamplingParams

_NAMES = {field.name for field in fields(SamplingParams)}
_PROMPT_NAMES = {"prompt", "prompt_token_ids"}


class ParameterError(ValueError):
    """A request's parameter is out of its range.

    `param` is its name in the API; `code` says what kind of fault it is.
    """

    def __init__(self, param: str | None, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def naming(error: ValueError) -> ParameterError:
    """Return `error` with the parameter that its message begins with."""
    message = str(error)
    first = message.split(maxsplit=1)[0].rstrip(":") if message else ""
    if first in _NAMES:
        return ParameterError(first, message)
    if first in _PROMPT_NAMES:
        return ParameterError("prompt", message, "context_length_exceeded" if "tokens" in message else "invalid_value")
    return ParameterError(None, message)
