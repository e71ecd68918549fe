"""Service: what every endpoint works with, and what they have in common.

One value holds the engine, the model's facts and the metrics; endpoints find it on the application's state.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi import Request
from starlette.responses import Response

from mansard.runtime.async_engine import AsyncEngine
from mansard.runtime.model import LoadedModel
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.parameter_error import ParameterError
from mansard.runtime.prompts import RequestTraits, Submission
from mansard.server.errors import ApiError
from mansard.server.event_stream import encode_json
from mansard.server.metrics import Metrics
from mansard.server.protocol import GenerationBody


@dataclass(slots=True)
class Service:
    """A running server's parts. `names`: what clients may call the model, the first being its own."""

    model: LoadedModel
    engine: AsyncEngine
    metrics: Metrics
    names: tuple[str, ...]
    started_s: float = field(default_factory=time.time)

    def check_model(self, name: str | None) -> str:
        """Return the name to answer with.

        Raises: ApiError 404 when the client asks for a model that is not served.
        """
        if name is None or name in self.names:
            return name or self.names[0]
        served = ", ".join(self.names)
        raise ApiError(404, f"model {name!r} is not served here; use {served}", param="model", code="model_not_found")

    async def stream(self, *submissions: Submission) -> AsyncGenerator[SequenceDelta, None]:
        """Submit requests and yield their deltas; closing the generator aborts what has not ended."""
        for submission in submissions:
            request = submission.request
            self.metrics.arrived(request.id, request.arrival_s, len(request.prompt_token_ids))
        async with contextlib.aclosing(self.engine.stream(*submissions)) as deltas:
            async for delta in deltas:
                yield delta

    def traits(self, body: GenerationBody, request_id: str) -> RequestTraits:
        """Return what a body says beside prompt and sampling.

        Raises: ParameterError for a priority where clients may not choose theirs.
        """
        if body.priority and not self.engine.enable_priority:
            message = f"priority is {body.priority}; this server runs requests in order (start it with --priority)"
            raise ParameterError("priority", message)
        return RequestTraits(request_id, self.engine.now(), body.cache_salt, body.priority)


def service_of(request: Request) -> Service:
    """Return the service of the application that `request` came to."""
    return cast(Service, request.app.state.service)


def new_id(prefix: str) -> str:
    """Return an id that no other request has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def json_response(data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a 200 with `data` as JSON."""
    return Response(encode_json(data), 200, dict(headers or {}), "application/json")


def raise_error(delta: SequenceDelta) -> None:
    """Raise ApiError 500 when `delta` says that its sequence failed."""
    if delta.error is not None:
        raise ApiError(500, delta.error, code="generation_failed")


def usage(num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> dict[str, Any]:
    """Return OpenAI's token counts."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }


class Counts:
    """Adds up the tokens of requests that are answered together."""

    def __init__(self, prompt_lengths: Sequence[int]) -> None:
        self._num_prompt_tokens = sum(prompt_lengths)
        self._num_cached: dict[str, int] = {}
        self._num_output: dict[tuple[str, int], int] = {}

    def add(self, delta: SequenceDelta) -> None:
        """Take in a delta."""
        self._num_cached.setdefault(delta.request_id, delta.num_cached_tokens)
        self._num_output[delta.request_id, delta.index] = delta.num_output_tokens

    def usage(self) -> dict[str, Any]:
        """Return the counts so far."""
        return usage(self._num_prompt_tokens, sum(self._num_cached.values()), sum(self._num_output.values()))
