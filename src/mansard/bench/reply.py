"""Reply: one streamed or whole OpenAI answer, turned into a RequestRecord as it comes.

It knows which frames carry output (text, reasoning, tool calls) and which do not: the role frame that opens a chat, the
frame that only finishes, the usage frame that trails. The time of a frame is the time of the read that completed it,
which whoever reads gives, so that tests script both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.bench.records import Cause, Chunk, RequestRecord
from mansard.bench.sse import DONE, EventReader

TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass(slots=True)
class Reply:
    """Collects what one request's answer shows; `record` is what it comes to."""

    index: int
    scheduled_s: float
    sent_s: float | None = None
    keeps_text: bool = False
    first_byte_s: float | None = None
    closed_s: float | None = None
    status: int = 0
    error: str | None = None
    message: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _chunks: list[Chunk] = field(default_factory=list)
    _events: EventReader = field(default_factory=EventReader)
    _body: bytearray = field(default_factory=bytearray)
    _is_stream: bool = True
    _num_counted: int = 0  # output tokens up to the last frame with output, where frames carry running counts
    _is_done: bool = False

    def begin(self, status: int, content_type: str) -> None:
        """Take in the status line and headers."""
        self.status = status
        self._is_stream = status == 200 and content_type.startswith("text/event-stream")

    def feed(self, data: bytes, now_s: float) -> None:
        """Take in bytes of the body that were read at `now_s`."""
        if self.first_byte_s is None:
            self.first_byte_s = now_s
        if not self._is_stream:
            self._body += data
            return
        try:
            for event in self._events.feed(data):
                self._event(event, now_s)
        except ValueError as error:
            self.fail(Cause.MALFORMED.value, str(error), now_s)

    def end(self, now_s: float) -> None:
        """Take in the end of the body."""
        self.closed_s = now_s
        if self.status != 200:
            self.fail(f"http {self.status}", _error_message(bytes(self._body)), now_s)
        elif not self._is_stream:
            self._whole(now_s)
        elif not self._is_done and self.finish_reason is None and self.error is None:
            self.fail(Cause.TRUNCATED.value, "the stream ended without a finish reason", now_s)

    def fail(self, cause: str, message: str, now_s: float) -> None:
        """Note that the request failed; the first cause stays."""
        if self.error is None:
            self.error, self.message = cause, message[:500]
        self.closed_s = now_s

    @property
    def text(self) -> str:
        """Return the output's text, where it was kept."""
        return "".join(self.texts)

    def record(self) -> RequestRecord:
        """Return what was seen."""
        details = self.usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        return RequestRecord(
            index=self.index,
            scheduled_s=self.scheduled_s,
            sent_s=self.sent_s,
            first_byte_s=self.first_byte_s,
            chunks=tuple(self._chunks),
            closed_s=self.closed_s,
            num_prompt_tokens=_count(self.usage.get("prompt_tokens")),
            num_cached_tokens=_count(cached),
            num_output_tokens=_count(self.usage.get("completion_tokens")),
            finish_reason=self.finish_reason,
            error=self.error,
            message=self.message,
        )

    def _event(self, event: bytes, now_s: float) -> None:
        if event == DONE:
            self._is_done = True
            return
        frame = json.loads(event)
        if not isinstance(frame, dict):
            raise ValueError("an event that is no JSON object")
        if frame.get("error"):
            error = frame["error"]
            said = error.get("message", "") if isinstance(error, dict) else error
            self.fail(Cause.SERVER_ERROR.value, str(said), now_s)
            return
        usage = frame.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = frame.get("choices")
        if choices:
            self._choice(choices[0], self._count_new(usage), now_s)

    def _count_new(self, usage: object) -> int | None:
        """Return how many tokens came since the last frame with output, if this one carries a running count."""
        total = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return total - self._num_counted if isinstance(total, int) else None

    def _choice(self, choice: Mapping[str, Any], num_new: int | None, now_s: float) -> None:
        text = _output_text(choice)
        if text:
            count = _named_tokens(choice) if num_new is None else num_new
            self._num_counted += num_new or 0
            self._chunks.append(Chunk(now_s, count, len(text.encode("utf-8", "replace"))))
            if self.keeps_text:
                self.texts.append(text)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _whole(self, now_s: float) -> None:
        """Read an answer that did not stream: all its tokens come at once."""
        try:
            answer = json.loads(bytes(self._body))
            choice = answer["choices"][0]
            self.usage = answer.get("usage") or {}
            self._choice({**choice, "delta": choice.get("message") or {}}, None, now_s)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.fail(Cause.MALFORMED.value, f"{type(error).__name__}: {error}", now_s)


def _output_text(choice: Mapping[str, Any]) -> str:
    """Return what a frame shows of the output; empty for role, finish and keep-alive frames."""
    text = choice.get("text") or ""
    delta = choice.get("delta")
    if not delta:
        return str(text)
    parts = [text, *(delta.get(name) or "" for name in TEXT_FIELDS)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [function.get("name") or "", function.get("arguments") or ""]
    return "".join(map(str, parts))


def _named_tokens(choice: Mapping[str, Any]) -> int | None:
    """Return how many tokens a frame lists, where the server sends ids or log-probabilities."""
    ids = choice.get("token_ids")
    if ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return None
    listed = logprobs.get("content") or logprobs.get("tokens")
    return len(listed) if listed else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _error_message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace")
