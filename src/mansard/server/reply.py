"""From a sequence's text to the parts of a chat message: what was thought, what was said, which tools are called.

One reader serves the plain reply and the stream, so they cannot say different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mansard.loading.tokenizer import Tokenizer
from mansard.runtime.outputs import SequenceDelta
from mansard.server.logprobs import chat_entry
from mansard.server.reasoning import ReasoningSplit
from mansard.server.tool_body import ToolUse
from mansard.server.tool_stream import CallArguments, CallBegin, Content, Event, Reasoning, ToolStream


class ReplyReader:
    """Reads one choice's text as it grows; without thinking and tools it passes the text on."""

    def __init__(self, use: ToolUse, splits_reasoning: bool, is_thinking: bool) -> None:
        self._use = use
        self._reasoning = ReasoningSplit(is_thinking) if splits_reasoning else None
        self._tools = ToolStream(use.form) if use.form is not None else None

    def push(self, text: str) -> Iterator[Event]:
        """Take text and yield what it brings."""
        if not text:
            return
        if self._reasoning is None:
            yield from self._say([Content(text)])
        else:
            yield from self._say(self._reasoning.push(text))

    def finish(self) -> Iterator[Event]:
        """Yield what was held back, at the end of the text."""
        if self._reasoning is not None:
            yield from self._say(self._reasoning.finish())
        if self._tools is not None:
            yield from self._tools.finish()

    def finish_reason(self, reason: str) -> str:
        """Return OpenAI's finish reason: a reply that ends with calls ends because of them."""
        called = self._tools is not None and self._tools.num_calls > 0
        return "tool_calls" if called and reason == "stop" and not self._use.is_named else reason

    def _say(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Content) and self._tools is not None:
                yield from self._tools.push(event.text)
            else:
                yield event


def message_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return the whole message that events make."""
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallBegin():
                calls.append(_call(event))
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    message["refusal"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def delta_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return what events add to a message, as a stream's frame holds it."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case Reasoning(text):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + text
            case CallBegin(index):
                calls[index] = {"index": index, **_call(event)}
            case CallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def _call(begin: CallBegin) -> dict[str, Any]:
    return {"id": begin.id, "type": "function", "function": {"name": begin.name, "arguments": ""}}


class StreamedChoice:
    """One choice of a stream; holds log-probabilities back until there is something or an end to go with."""

    def __init__(self, index: int, reader: ReplyReader, tokenizer: Tokenizer, wants_logprobs: bool) -> None:
        self._index = index
        self._reader = reader
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._entries: list[dict[str, Any]] = []
        self._began = False

    def push(self, delta: SequenceDelta) -> dict[str, Any] | None:
        """Return the choice object to send for `delta`, or None when there is nothing to show yet."""
        if self._wants_logprobs:
            self._entries += [chat_entry(entry, self._tokenizer) for entry in delta.logprobs]
        has_ended = delta.finish_reason is not None
        events = [*self._reader.push(delta.text)]
        if has_ended:
            events += self._reader.finish()
        if not events and not has_ended:
            return None
        content = delta_of(events)
        if not self._began:
            content = {"role": "assistant", **(content or {"content": ""})}
        self._began = True
        choice: dict[str, Any] = {"index": self._index, "delta": content, "logprobs": None}
        if self._wants_logprobs:
            choice["logprobs"] = {"content": self._entries, "refusal": None}
            self._entries = []
        choice["finish_reason"] = self._reader.finish_reason(str(delta.finish_reason)) if has_ended else None
        if has_ended:
            choice["stop_reason"] = delta.stop_reason
        return choice
