"""POST /v1/chat/completions: replies to conversations, whole or as a stream.

Source: OpenAI API reference, chat completions. A stream's first frame carries the role together with the
first text, so that a client's time to first token is that of a token.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mansard.runtime.outputs import CompletionOutput, OutputBuilder, SequenceDelta
from mansard.runtime.prompts import Submission
from mansard.server.bodies import read_body, warnings
from mansard.server.errors import ApiError
from mansard.server.event_stream import DONE, EventStream, frame, unless_disconnected
from mansard.server.logprobs import chat_entry
from mansard.server.openapi import described
from mansard.server.protocol import ChatCompletionBody
from mansard.server.reasoning import opens_thinking
from mansard.server.reply import ReplyReader, StreamedChoice, message_of
from mansard.server.schemas import ChatCompletion
from mansard.server.service import Counts, Service, json_response, new_id, raise_error, service_of
from mansard.server.tool_body import ToolUse

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    **described("Reply to a conversation.", ChatCompletionBody, ChatCompletion, "chat.completion.chunk objects"),
)
async def create_chat_completion(request: Request) -> Response:
    """Reply to a conversation."""
    service = service_of(request)
    body = await read_body(request, ChatCompletionBody)
    model = service.check_model(body.model)
    service.check_count(body.num_choices, "n")
    timeout_s = service.timeout_s(request)
    use = ToolUse.of(body.tools, body.tool_choice, service.tool_form)
    request_id = new_id("chatcmpl")
    head = {"id": request_id, "created": int(time.time()), "model": model}
    submission = await prepare(service, body, use, request_id)
    counts = Counts([len(submission.request.prompt_token_ids)], request.state.log)
    reply = ChatReply(service, submission, use, counts, timeout_s)
    if body.stream:
        return EventStream(_frames(reply, head, body), warnings(body), service.options.keep_alive_s)
    whole = await unless_disconnected(request.receive, _whole(reply, head))
    return Response(status_code=499) if whole is None else json_response(whole, warnings(body))


async def prepare(service: Service, body: ChatCompletionBody, use: ToolUse, request_id: str) -> Submission:
    """Return what to submit for a chat, rendered and tokenized off the event loop."""
    params = use.adjust(body.sampling_params())
    traits = service.traits(body, request_id)
    messages = use.messages([message.for_template() for message in body.messages], service.template)
    return await service.engine.in_pool(
        lambda: service.engine.prompts.chat(
            messages,
            params,
            traits,
            add_generation_prompt=body.add_generation_prompt,
            tools=use.tools,
            template_arguments=body.chat_template_kwargs,
        )
    )


@dataclass(slots=True)
class ChatReply:
    """One conversation's answer while it is made."""

    service: Service
    submission: Submission
    use: ToolUse
    counts: Counts
    timeout_s: float | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Say whether the choices come with log-probabilities."""
        return self.submission.request.params.logprobs is not None

    def reader(self) -> ReplyReader:
        """Return what reads one choice's text."""
        is_open = opens_thinking(self.submission.prompt)
        return ReplyReader(self.use, self.service.splits_reasoning, is_open)

    async def deltas(self) -> AsyncGenerator[SequenceDelta, None]:
        """Yield what the choices gain.

        Raises: ApiError when one of them fails.
        """
        async with aclosing(self.service.stream(self.submission, timeout_s=self.timeout_s)) as deltas:
            async for delta in deltas:
                self.counts.add(delta)
                raise_error(delta)
                yield delta


async def _whole(reply: ChatReply, head: dict[str, Any]) -> dict[str, Any]:
    """Return the answer when every choice has ended."""
    request, tokenizer = reply.submission.request, reply.service.model.tokenizer
    builder = OutputBuilder(request.id, reply.submission.prompt, request.prompt_token_ids, request.arrival_s)
    async with aclosing(reply.deltas()) as deltas:
        async for delta in deltas:
            builder.add(delta)
    output = builder.build()
    answer = {**head, "object": "chat.completion"}
    answer["choices"] = [_choice(reply, completion) for completion in output.outputs]
    answer["usage"] = reply.counts.usage()
    if output.prompt_logprobs is not None:
        answer["prompt_logprobs"] = [None, *(chat_entry(entry, tokenizer) for entry in output.prompt_logprobs)]
    return answer


def _choice(reply: ChatReply, completion: CompletionOutput) -> dict[str, Any]:
    tokenizer = reply.service.model.tokenizer
    entries = [chat_entry(entry, tokenizer) for entry in completion.logprobs or ()]
    reader = reply.reader()
    events = [*reader.push(completion.text), *reader.finish()]
    return {
        "index": completion.index,
        "message": message_of(events),
        "logprobs": {"content": entries, "refusal": None} if reply.wants_logprobs else None,
        "finish_reason": reader.finish_reason(str(completion.finish_reason)),
        "stop_reason": completion.stop_reason,
    }


async def _frames(reply: ChatReply, head: dict[str, Any], body: ChatCompletionBody) -> AsyncGenerator[bytes, None]:
    """Yield the answer as events; the first of each choice carries the role."""
    head = {**head, "object": "chat.completion.chunk"}
    if body.wants_usage_frame:
        head["usage"] = None
    tokenizer = reply.service.model.tokenizer
    choices = [StreamedChoice(i, reply.reader(), tokenizer, reply.wants_logprobs) for i in range(body.num_choices)]
    try:
        async with aclosing(reply.deltas()) as deltas:
            async for delta in deltas:
                choice = choices[delta.index].push(delta)
                if choice is not None:
                    yield frame({**head, "choices": [choice]})
    except ApiError as error:
        yield frame(error.envelope())
    else:
        if body.wants_usage_frame:
            yield frame({**head, "choices": [], "usage": reply.counts.usage()})
    yield DONE
