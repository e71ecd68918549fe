"""POST /v1/responses: OpenAI's newer API for text, whole or as a stream of typed events.

Source: OpenAI API reference, responses and streaming events. An output is a list of items: what the model
thought, if it did, and its message. The plain answer is what the last event of the stream would carry.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mansard.runtime.outputs import SequenceDelta
from mansard.server.bodies import read_body, warnings
from mansard.server.chat import ChatReply, prepare
from mansard.server.errors import ApiError
from mansard.server.event_stream import EventStream, encode_json, unless_disconnected
from mansard.server.openapi import described
from mansard.server.reply import ReplyReader
from mansard.server.responses_body import ResponsesBody
from mansard.server.schemas import ResponseAnswer
from mansard.server.service import Counts, json_response, new_id, service_of
from mansard.server.tool_body import ToolUse
from mansard.server.tool_stream import Event, Reasoning

router = APIRouter()

Named = tuple[str, dict[str, Any]]  # an event's type and what it carries


@router.post(
    "/v1/responses",
    **described("Reply to an input.", ResponsesBody, ResponseAnswer, "typed events, see OpenAI's reference"),
)
async def create_response(request: Request) -> Response:
    """Reply to an input."""
    service = service_of(request)
    body = await read_body(request, ResponsesBody)
    head = _head(body, service.check_model(body.model))
    timeout_s = service.timeout_s(request)
    submission = await prepare(service, body.as_chat(), ToolUse(), head["id"])
    counts = Counts([len(submission.request.prompt_token_ids)], request.state.log)
    reply = ChatReply(service, submission, ToolUse(), counts, timeout_s)
    answer = _Answer(head, reply.reader(), counts)
    if body.stream:
        return EventStream(_frames(reply, answer), warnings(body), service.options.keep_alive_s)
    whole = await unless_disconnected(request.receive, _whole(reply, answer))
    return Response(status_code=499) if whole is None else json_response(whole, warnings(body))


def _head(body: ResponsesBody, model: str) -> dict[str, Any]:
    """Return the response object before anything was generated."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


async def _whole(reply: ChatReply, answer: _Answer) -> dict[str, Any]:
    async with aclosing(reply.deltas()) as deltas:
        async for delta in deltas:
            for _ in answer.push(delta):
                pass
    return answer.response


async def _frames(reply: ChatReply, answer: _Answer) -> AsyncGenerator[bytes, None]:
    numbers = _Numbered()
    for kind in ("response.created", "response.in_progress"):
        yield numbers.frame(kind, {"response": answer.response})
    try:
        async with aclosing(reply.deltas()) as deltas:
            async for delta in deltas:
                for kind, data in answer.push(delta):
                    yield numbers.frame(kind, data)
    except ApiError as error:
        failure = {"code": error.code or "server_error", "message": error.message}
        yield numbers.frame("response.failed", {"response": {**answer.response, "status": "failed", "error": failure}})


class _Numbered:
    """Writes events with their running numbers."""

    def __init__(self) -> None:
        self._number = 0

    def frame(self, kind: str, data: dict[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode_json(event) + b"\n\n"


class _Answer:
    """The response object as it grows, and the events that tell of it."""

    def __init__(self, head: dict[str, Any], reader: ReplyReader, counts: Counts) -> None:
        self.response = head
        self._reader = reader
        self._counts = counts
        self._items: list[_Item] = []

    def push(self, delta: SequenceDelta) -> Iterator[Named]:
        """Take a delta and yield the events it makes."""
        yield from self._say(self._reader.push(delta.text))
        if delta.finish_reason is None:
            return
        yield from self._say(self._reader.finish())
        if not self._items or self._items[-1].is_reasoning:
            yield from self._open(is_reasoning=False)
        yield from self._items[-1].close()
        is_whole = str(delta.finish_reason) == "stop"
        self.response |= {
            "status": "completed" if is_whole else "incomplete",
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "output": [item.whole() for item in self._items],
            "usage": self._usage(),
        }
        yield ("response.completed" if is_whole else "response.incomplete"), {"response": self.response}

    def _say(self, events: Iterable[Event]) -> Iterator[Named]:
        for event in events:
            is_reasoning = isinstance(event, Reasoning)
            if not self._items or self._items[-1].is_reasoning != is_reasoning:
                yield from self._open(is_reasoning)
            yield self._items[-1].add(getattr(event, "text", ""))

    def _open(self, is_reasoning: bool) -> Iterator[Named]:
        if self._items:
            yield from self._items[-1].close()
        self._items.append(_Item(len(self._items), is_reasoning))
        yield from self._items[-1].open()

    def _usage(self) -> dict[str, Any]:
        counts = self._counts
        return {
            "input_tokens": counts.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": counts.num_cached_tokens},
            "output_tokens": counts.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.num_prompt_tokens + counts.num_output_tokens,
        }


class _Item:
    """One item of the output with its one part of text."""

    def __init__(self, index: int, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self._id = new_id("rs" if is_reasoning else "msg")
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._index = index
        self._kind = "reasoning_text" if is_reasoning else "output_text"
        self._pieces: list[str] = []

    def open(self) -> Iterator[Named]:
        """Yield the events before the first text."""
        yield "response.output_item.added", {"output_index": self._index, "item": self._item("in_progress", [])}
        yield "response.content_part.added", {**self._place, "part": self._part("")}

    def add(self, text: str) -> Named:
        """Take text and return its event."""
        self._pieces.append(text)
        return f"response.{self._kind}.delta", {**self._place, "delta": text, "logprobs": []}

    def close(self) -> Iterator[Named]:
        """Yield the events behind the last text."""
        text = "".join(self._pieces)
        yield f"response.{self._kind}.done", {**self._place, "text": text, "logprobs": []}
        yield "response.content_part.done", {**self._place, "part": self._part(text)}
        yield "response.output_item.done", {"output_index": self._index, "item": self.whole()}

    def whole(self) -> dict[str, Any]:
        """Return the item as it ended."""
        return self._item("completed", [self._part("".join(self._pieces))])

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        if self.is_reasoning:
            return {"id": self._id, "type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        if self.is_reasoning:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
