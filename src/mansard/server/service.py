"""Service: what every endpoint works with, and what they have in common.

One value holds the engine, the model's facts, the metrics and the options; endpoints find it on the
application's state.
"""

from __future__ import annotations

import contextlib
import math
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
from mansard.server.options import ServerOptions
from mansard.server.protocol import GenerationBody
from mansard.server.tool_forms import ToolForm, choose_form

TIMEOUT_HEADER = "x-request-timeout"


@dataclass(slots=True)
class Service:
    """A running server's parts. `names`: what clients may call the model, the first being its own."""

    model: LoadedModel
    engine: AsyncEngine
    metrics: Metrics
    names: tuple[str, ...]
    options: ServerOptions = field(default_factory=ServerOptions)
    started_s: float = field(default_factory=time.time)
    is_draining: bool = False

    @property
    def template(self) -> str | None:
        """Return the source of the chat template."""
        return None if self.model.chat_template is None else self.model.chat_template.source

    @property
    def tool_form(self) -> ToolForm | None:
        """Return how the model writes tool calls; None when tools are turned off."""
        return choose_form(self.options.tool_call_parser, self.template)

    @property
    def splits_reasoning(self) -> bool:
        """Say whether replies may begin with thinking that is answered apart."""
        return self.options.split_reasoning and "think>" in (self.template or "")

    def check_model(self, name: str | None) -> str:
        """Return the name to answer with.

        Raises: ApiError 404 when the client asks for a model that is not served.
        """
        if name is None or name in self.names:
            return name or self.names[0]
        served = ", ".join(self.names)
        raise ApiError(404, f"model {name!r} is not served here; use {served}", param="model", code="model_not_found")

    def check_count(self, num_sequences: int, param: str) -> None:
        """Refuse a request for more sequences than one may ask for."""
        limit = self.options.max_sequences_per_request
        if num_sequences > limit:
            message = f"the request asks for {num_sequences:,} sequences (prompts times n); at most {limit} are allowed"
            raise ParameterError(param, message)

    def timeout_s(self, request: Request) -> float | None:
        """Return how long a request may take: what the client's header says, within the server's limit.

        Raises: ParameterError when the header is no positive number.
        """
        limit = self.options.request_timeout_s
        text = request.headers.get(TIMEOUT_HEADER)
        if text is None:
            return limit
        try:
            wanted = float(text)
        except ValueError:
            wanted = math.nan
        if not 0 < wanted < math.inf:
            message = f"the header {TIMEOUT_HEADER} is {text[:40]!r}; it must be a number of seconds above 0"
            raise ParameterError(TIMEOUT_HEADER, message)
        return wanted if limit is None else min(wanted, limit)

    async def stream(
        self, *submissions: Submission, timeout_s: float | None = None
    ) -> AsyncGenerator[SequenceDelta, None]:
        """Submit requests and yield their deltas; closing the generator aborts what has not ended.

        Raises: ApiError 408 when they take longer than `timeout_s`.
        """
        for submission in submissions:
            request = submission.request
            self.metrics.arrived(request.id, request.arrival_s, len(request.prompt_token_ids))
        try:
            async with contextlib.aclosing(self.engine.stream(*submissions, timeout_s=timeout_s)) as deltas:
                async for delta in deltas:
                    yield delta
        except TimeoutError as error:
            raise ApiError(408, str(error), code="timeout") from error

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
    """Adds up the tokens of requests that are answered together; `log` is where the access log reads them."""

    def __init__(self, prompt_lengths: Sequence[int], log: dict[str, Any]) -> None:
        self.num_prompt_tokens = sum(prompt_lengths)
        self._num_cached: dict[str, int] = {}
        self._num_output: dict[tuple[str, int], int] = {}
        self._log = log
        log["prompt_tokens"] = self.num_prompt_tokens
        log["output_tokens"] = 0

    def add(self, delta: SequenceDelta) -> None:
        """Take in a delta."""
        self._num_cached.setdefault(delta.request_id, delta.num_cached_tokens)
        self._num_output[delta.request_id, delta.index] = delta.num_output_tokens
        if delta.finish_reason is not None:
            self._log["output_tokens"] = self.num_output_tokens
            self._log["finish_reason"] = str(delta.finish_reason)

    @property
    def num_cached_tokens(self) -> int:
        """Return how many prompt tokens came from the prefix cache."""
        return sum(self._num_cached.values())

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated so far."""
        return sum(self._num_output.values())

    def usage(self) -> dict[str, Any]:
        """Return the counts so far."""
        return usage(self.num_prompt_tokens, self.num_cached_tokens, self.num_output_tokens)
