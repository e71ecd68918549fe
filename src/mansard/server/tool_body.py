"""What chat bodies say about tools, and what follows for the prompt, the constraint and the reading of the reply.

`auto` leaves the model free and reads calls in its family's form. `required` and a named function constrain the
output to one call, written as a bare JSON object, so the arguments always satisfy the function's schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from mansard.core.types import SamplingParams, Structure
from mansard.runtime.parameter_error import ParameterError
from mansard.server.body import Body
from mansard.server.structure_body import json_structure
from mansard.server.tool_forms import BARE, ToolForm, introduction


class Function(Body):
    """A function's name and the JSON schema of its arguments."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """Something the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """A function by its name."""

    name: str


class NamedChoice(Body):
    """The one function to call."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class CalledFunction(Body):
    """A call as OpenAI's messages hold it: the arguments are JSON in a text."""

    name: str
    arguments: str = "{}"


class ToolCall(Body):
    """An earlier call of the conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates know it."""
        call = self.model_dump(exclude_none=True)
        try:
            call["function"]["arguments"] = json.loads(self.function.arguments or "{}")
        except ValueError as error:
            name = self.function.name
            raise ParameterError("messages", f"the arguments of a call of {name!r} are not JSON: {error}") from error
        return call


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request's tools come to: what the prompt shows, what constrains the output, how to read it.

    `is_named`: one function was demanded; OpenAI's finish reason is then "stop".
    """

    tools: tuple[dict[str, Any], ...] = ()
    form: ToolForm | None = None
    structure: Structure | None = None
    is_named: bool = False

    @classmethod
    def of(cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, form: ToolForm | None) -> ToolUse:
        """Return the use that a body asks for; `form`: how the model writes calls.

        Raises: ParameterError when a choice has no tool, or this server reads no calls.
        """
        if not tools:
            if choice not in (None, "none", "auto"):
                raise ParameterError("tool_choice", "tool_choice demands a call, but there are no tools")
            return cls()
        if choice == "none":
            return cls()
        if form is None:
            raise ParameterError("tools", "tools are turned off on this server", "unsupported_value")
        shown = tuple(tool.model_dump(exclude_none=True) for tool in tools)
        if choice in (None, "auto"):
            return cls(shown, form)
        if isinstance(choice, NamedChoice):
            name = choice.function.name
            demanded = [tool for tool in tools if tool.function.name == name]
            if not demanded:
                raise ParameterError("tool_choice", f"tool_choice names {name!r}, which is no tool of the request")
            return cls(shown, BARE, _one_call_of(demanded), is_named=True)
        return cls(shown, BARE, _one_call_of(tools))

    def adjust(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with what the tools ask of the sampling.

        Raises: ParameterError when the output is constrained already.
        """
        if self.form is None:
            return params
        if params.structure is not None:
            message = "a structured output leaves no room for tool calls; set tool_choice to none"
            raise ParameterError("tools", message)
        keeps_special = self.form.keeps_special
        return replace(
            params,
            structure=self.structure,
            skip_special_tokens=params.skip_special_tokens and not keeps_special,
        )

    def messages(self, messages: list[dict[str, Any]], template: str | None) -> list[dict[str, Any]]:
        """Return the messages to render; a template that knows no tools gets them as a system text."""
        if not self.tools or "tools" in (template or ""):
            return messages
        text = introduction(self.tools)
        plain = [_without_calls(message) for message in messages]
        if plain and plain[0]["role"] == "system":
            return [{**plain[0], "content": f"{_text(plain[0])}\n\n{text}"}, *plain[1:]]
        return [{"role": "system", "content": text}, *plain]


def _one_call_of(tools: Sequence[Tool]) -> Structure:
    """Return the structure of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    shared: dict[str, Any] = {}
    for tool in tools:  # references count from the root of a schema, so definitions move there
        for key in ("$defs", "definitions"):
            shared.setdefault(key, {}).update((tool.function.parameters or {}).get(key, {}))
    return json_structure({**{key: value for key, value in shared.items() if value}, "anyOf": calls})


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Write the calls of an earlier message, or a tool's answer, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message)}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = (json.dumps(call["function"], ensure_ascii=False) for call in calls)
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
    return {"role": message["role"], "content": f"{_text(message)}\n{text}".strip()}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)
