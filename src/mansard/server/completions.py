"""POST /v1/completions: continues raw prompts, one or many at once, whole or as a stream.

Source: OpenAI API reference, completions (legacy). With several prompts the choices are numbered prompt by
prompt. `echo` puts the prompt before the text, and its log-probabilities before the output's, which is how
log-likelihood benchmarks score a text (`max_tokens: 0` asks for the prompt's alone).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mansard.loading.tokenizer import Tokenizer
from mansard.runtime.outputs import SequenceDelta
from mansard.runtime.prompts import Submission
from mansard.server.bodies import read_body, warnings
from mansard.server.errors import ApiError
from mansard.server.event_stream import DONE, EventStream, frame, unless_disconnected
from mansard.server.logprobs import CompletionLogprobs, chat_entry, joined
from mansard.server.openapi import described
from mansard.server.protocol import CompletionBody
from mansard.server.schemas import TextCompletion
from mansard.server.service import Counts, Service, json_response, new_id, raise_error, service_of

router = APIRouter()


@router.post(
    "/v1/completions",
    **described("Continue prompts.", CompletionBody, TextCompletion, "text_completion objects"),
)
async def create_completion(request: Request) -> Response:
    """Continue prompts."""
    service = service_of(request)
    body = await read_body(request, CompletionBody)
    model = service.check_model(body.model)
    timeout_s = service.timeout_s(request)
    request_id = new_id("cmpl")
    submissions = await _prepare(service, body, request_id)
    head = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": model}
    counts = Counts([len(s.request.prompt_token_ids) for s in submissions], request.state.log)
    answer = _Answer(service, submissions, body, head, counts, timeout_s)
    if body.stream:
        return EventStream(answer.frames(body.wants_usage_frame), warnings(body), service.options.keep_alive_s)
    whole = await unless_disconnected(request.receive, answer.whole())
    return Response(status_code=499) if whole is None else json_response(whole, warnings(body))


async def _prepare(service: Service, body: CompletionBody, request_id: str) -> list[Submission]:
    """Tokenize off the event loop."""
    params, prompts = body.sampling_params(), body.prompts()
    service.check_count(len(prompts) * body.num_choices, "prompt" if len(prompts) > 1 else "n")
    traits = [service.traits(body, f"{request_id}-{i}") for i in range(len(prompts))]
    prepare = service.engine.prompts.completion
    return await service.engine.in_pool(
        lambda: [prepare(prompt, params, t) for prompt, t in zip(prompts, traits, strict=True)]
    )


class _Answer:
    """The choices of all prompts, in either form."""

    def __init__(
        self,
        service: Service,
        submissions: list[Submission],
        body: CompletionBody,
        head: dict[str, Any],
        counts: Counts,
        timeout_s: float | None,
    ) -> None:
        self._service = service
        self._submissions = submissions
        self._head = head
        self._counts = counts
        self._timeout_s = timeout_s
        self._choices: dict[tuple[str, int], _Choice] = {}
        for submission in submissions:
            for index in range(submission.request.params.n):
                choice = _Choice(len(self._choices), submission, body, service.model.tokenizer)
                self._choices[submission.request.id, index] = choice

    async def _updates(self) -> AsyncGenerator[tuple[_Choice, dict[str, Any] | None], None]:
        async with aclosing(self._service.stream(*self._submissions, timeout_s=self._timeout_s)) as deltas:
            async for delta in deltas:
                self._counts.add(delta)
                raise_error(delta)
                self._share_prompt_logprobs(delta)
                choice = self._choices[delta.request_id, delta.index]
                yield choice, choice.push(delta)

    def _share_prompt_logprobs(self, delta: SequenceDelta) -> None:
        """Give what the first sequence learns of the prompt to all choices of the request."""
        if delta.prompt_logprobs:
            for (request_id, _), choice in self._choices.items():
                if request_id == delta.request_id:
                    choice.add_prompt(delta)

    async def whole(self) -> dict[str, Any]:
        """Return the answer when every choice has ended."""
        pieces: dict[int, list[dict[str, Any]]] = {c.index: [] for c in self._choices.values()}
        async with aclosing(self._updates()) as updates:
            async for choice, piece in updates:
                if piece is not None:
                    pieces[choice.index].append(piece)
        choices = [_joined(parts) for parts in pieces.values()]
        return {**self._head, "choices": choices, "usage": self._counts.usage()}

    async def frames(self, wants_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the answer as events."""
        head = {**self._head, "usage": None} if wants_usage else self._head
        try:
            async with aclosing(self._updates()) as updates:
                async for _, piece in updates:
                    if piece is not None:
                        yield frame({**head, "choices": [piece]})
        except ApiError as error:
            yield frame(error.envelope())
        else:
            if wants_usage:
                yield frame({**head, "choices": [], "usage": self._counts.usage()})
        yield DONE


class _Choice:
    """One choice as it grows; holds log-probabilities back until there is text or an end to go with."""

    def __init__(self, index: int, submission: Submission, body: CompletionBody, tokenizer: Tokenizer) -> None:
        self.index = index
        self._prefix = ""
        self._pending: list[dict[str, Any]] = []
        self._logprobs: CompletionLogprobs | None = None
        self._tokenizer = tokenizer
        self._echoes_logprobs = body.echo and body.logprobs is not None
        self._prompt: list[Any] | None = None if body.prompt_logprobs is None else [None]
        request = submission.request
        if body.echo:
            prompt = submission.prompt
            self._prefix = tokenizer.decode(request.prompt_token_ids, False) if prompt is None else prompt
        if body.logprobs is not None:
            self._logprobs = CompletionLogprobs(tokenizer, body.logprobs)
            if body.echo:
                self._pending.append(self._logprobs.unscored(request.prompt_token_ids[0]))

    def add_prompt(self, delta: SequenceDelta) -> None:
        """Take in log-probabilities of the prompt, which come before any of the output."""
        if self._echoes_logprobs and self._logprobs is not None:
            self._pending.append(self._logprobs.scored(delta.prompt_logprobs))
        if self._prompt is not None:
            self._prompt += [chat_entry(entry, self._tokenizer) for entry in delta.prompt_logprobs]

    def push(self, delta: SequenceDelta) -> dict[str, Any] | None:
        """Return the choice object to send for `delta`, or None when there is nothing to show yet."""
        if self._logprobs is not None and delta.logprobs:
            self._pending.append(self._logprobs.scored(delta.logprobs))
        if not delta.text and delta.finish_reason is None:
            return None
        piece: dict[str, Any] = {"index": self.index, "text": self._prefix + delta.text, "logprobs": None}
        self._prefix = ""
        if self._logprobs is not None:
            piece["logprobs"] = joined(self._pending)
            self._pending = []
        piece["finish_reason"] = None if delta.finish_reason is None else str(delta.finish_reason)
        piece["stop_reason"] = delta.stop_reason
        if self._prompt is not None and delta.finish_reason is not None:
            piece["prompt_logprobs"] = self._prompt
        return piece


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the pieces of one choice as one."""
    whole = dict(pieces[-1])
    whole["text"] = "".join(piece["text"] for piece in pieces)
    if whole["logprobs"] is not None:
        whole["logprobs"] = joined(piece["logprobs"] for piece in pieces)
    return whole
