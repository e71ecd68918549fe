"""The JSON of /v1/responses and what it comes to as a chat.

Conversations are the client's to keep: nothing is stored, so `previous_response_id` is refused and `store` has
no effect. Tools belong to /v1/chat/completions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mansard.runtime.parameter_error import ParameterError
from mansard.server.body import Body
from mansard.server.protocol import ChatCompletionBody, Message, TextPart
from mansard.server.structure_body import JsonSchemaFormat, ResponseFormat


class InputText(Body):
    """One part of an item's content; this server takes text alone."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputItem(Body):
    """One message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText]


class TextFormat(Body):
    """The shape that the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = "output"
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextOptions(Body):
    """How the text comes."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesBody(Body):
    """The body of POST /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    seed: int | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: float | None = None
    text: TextOptions | None = None
    tools: list[Any] | None = None
    top_p: float | None = None
    truncation: str | None = None
    user: str | None = None

    def as_chat(self) -> ChatCompletionBody:
        """Return the chat that this asks for.

        Raises: ParameterError for what this server does not do.
        """
        self._check()
        messages = [Message(role="system", content=self.instructions)] if self.instructions else []
        return ChatCompletionBody(
            messages=[*messages, *self._messages()],
            max_completion_tokens=self.max_output_tokens,
            response_format=self._format(),
            seed=self.seed,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
        )

    def _check(self) -> None:
        if self.previous_response_id is not None:
            message = "previous_response_id cannot be used: responses are not stored (send the whole conversation)"
            raise ParameterError("previous_response_id", message, "unsupported_value")
        if self.tools:
            message = "tools are not available in /v1/responses; use /v1/chat/completions"
            raise ParameterError("tools", message, "unsupported_value")
        if self.truncation not in (None, "disabled"):
            raise ParameterError("truncation", f"truncation is {self.truncation!r}; only 'disabled' is available")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            message = f"max_output_tokens is {self.max_output_tokens}; it must be at least 1"
            raise ParameterError("max_output_tokens", message)

    def _messages(self) -> list[Message]:
        if isinstance(self.input, str):
            return [Message(role="user", content=self.input)]
        return [Message(role=item.role, content=_content(item)) for item in self.input]

    def _format(self) -> ResponseFormat | None:
        given = self.text.format if self.text is not None else None
        if given is None:
            return None
        schema = JsonSchemaFormat(name=given.name, schema=given.schema_) if given.type == "json_schema" else None
        return ResponseFormat(type=given.type, json_schema=schema)


def _content(item: InputItem) -> str | list[TextPart]:
    if isinstance(item.content, str):
        return item.content
    return [TextPart(type="text", text=part.text) for part in item.content]
