"""POST /v1/chat/completions: replies to conversations, whole or as a stream.

Source: OpenAI API reference, chat completions. A stream's first frame carries the role together with the
first text, so that a client's time to first token is that of a token.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mansard.loading.tokenizer import Tokenizer
from mansard.runtime.outputs import CompletionOutput, OutputBuilder, SequenceDelta
from mansard.runtime.prompts import Submission
from mansard.server.bodies import body_schema, read_body, warnings
from mansard.server.errors import ApiError
from mansard.server.event_stream import DONE, EventStream, frame, unless_disconnected
from mansard.server.logprobs import chat_entry
from mansard.server.protocol import ChatCompletionBody
from mansard.server.service import Counts, Service, json_response, new_id, raise_error, service_of

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatCompletionBody))
async def create_chat_completion(request: Request) -> Response:
    """Reply to a conversation."""
    body = await read_body(request, ChatCompletionBody)
    service = service_of(request)
    model = service.check_model(body.model)
    request_id = new_id("chatcmpl")
    submission = await _prepare(service, body, request_id)
    reply = _Reply(service, submission, {"id": request_id, "created": int(time.time()), "model": model})
    if body.stream:
        return EventStream(reply.frames(body.wants_usage_frame), warnings(body))
    whole = await unless_disconnected(request.receive, reply.whole())
    return Response(status_code=499) if whole is None else json_response(whole, warnings(body))


async def _prepare(service: Service, body: ChatCompletionBody, request_id: str) -> Submission:
    """Render and tokenize off the event loop."""
    params = body.sampling_params()
    traits = service.traits(body, request_id)
    messages = [message.for_template() for message in body.messages]
    return await service.engine.in_pool(
        lambda: service.engine.prompts.chat(
            messages,
            params,
            traits,
            add_generation_prompt=body.add_generation_prompt,
            template_arguments=body.chat_template_kwargs,
        )
    )


class _Reply:
    """One conversation's answer in either form; `head` is what all its objects begin with."""

    def __init__(self, service: Service, submission: Submission, head: dict[str, Any]) -> None:
        self._service = service
        self._submission = submission
        self._head = head
        self._tokenizer = service.model.tokenizer
        self._wants_logprobs = submission.request.params.logprobs is not None
        self._counts = Counts([len(submission.request.prompt_token_ids)])

    async def _deltas(self) -> AsyncGenerator[SequenceDelta, None]:
        async with aclosing(self._service.stream(self._submission)) as deltas:
            async for delta in deltas:
                self._counts.add(delta)
                raise_error(delta)
                yield delta

    async def whole(self) -> dict[str, Any]:
        """Return the answer when every choice has ended."""
        request = self._submission.request
        builder = OutputBuilder(request.id, self._submission.prompt, request.prompt_token_ids, request.arrival_s)
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                builder.add(delta)
        output = builder.build()
        answer = {**self._head, "object": "chat.completion"}
        answer["choices"] = [self._choice(completion) for completion in output.outputs]
        answer["usage"] = self._counts.usage()
        if output.prompt_logprobs is not None:
            scored = [chat_entry(entry, self._tokenizer) for entry in output.prompt_logprobs]
            answer["prompt_logprobs"] = [None, *scored]
        return answer

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        entries = [chat_entry(entry, self._tokenizer) for entry in completion.logprobs or ()]
        return {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": {"content": entries, "refusal": None} if self._wants_logprobs else None,
            "finish_reason": str(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }

    async def frames(self, wants_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the answer as events; the first of each choice carries the role."""
        head = {**self._head, "object": "chat.completion.chunk"}
        if wants_usage:
            head["usage"] = None
        choices = [
            _StreamedChoice(i, self._tokenizer, self._wants_logprobs) for i in range(self._submission.request.params.n)
        ]
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    choice = choices[delta.index].push(delta)
                    if choice is not None:
                        yield frame({**head, "choices": [choice]})
        except ApiError as error:
            yield frame(error.envelope())
        else:
            if wants_usage:
                yield frame({**head, "choices": [], "usage": self._counts.usage()})
        yield DONE


class _StreamedChoice:
    """One choice of a stream; holds log-probabilities back until there is text or an end to go with."""

    def __init__(self, index: int, tokenizer: Tokenizer, wants_logprobs: bool) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._entries: list[dict[str, Any]] = []
        self._began = False

    def push(self, delta: SequenceDelta) -> dict[str, Any] | None:
        """Return the choice object to send for `delta`, or None when there is nothing to show yet."""
        if self._wants_logprobs:
            self._entries += [chat_entry(entry, self._tokenizer) for entry in delta.logprobs]
        if not delta.text and delta.finish_reason is None:
            return None
        content: dict[str, Any] = {} if self._began else {"role": "assistant"}
        if delta.text or not self._began:
            content["content"] = delta.text
        self._began = True
        choice: dict[str, Any] = {"index": self._index, "delta": content, "logprobs": None}
        if self._wants_logprobs:
            choice["logprobs"] = {"content": self._entries, "refusal": None}
            self._entries = []
        choice["finish_reason"] = None if delta.finish_reason is None else str(delta.finish_reason)
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice
