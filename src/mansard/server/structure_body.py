"""What bodies say about an output's structure, in the words of OpenAI, vLLM and llama.cpp's server.

OpenAI: `response_format`. vLLM: `structured_outputs` and the older `guided_json`, `guided_regex`,
`guided_choice`, `guided_grammar`. llama.cpp's server: `grammar` and `json_schema`. All of them become one
`Structure`; more than one in a request is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from mansard.core.types import Structure
from mansard.runtime.parameter_error import ParameterError
from mansard.server.body import Body

Schema = dict[str, Any] | str
Choices = Annotated[list[str], Field(min_length=1, max_length=1000)]

ANY_OBJECT = Structure("json_schema", '{"type":"object"}')


class JsonSchemaFormat(Body):
    """A named schema."""

    name: str = "output"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The shape that the output must have; `text` asks for none."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Body):
    """vLLM's way to say it; one of the fields."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructuredBody(Body):
    """The fields of a body that constrain its output."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    def structure(self) -> Structure | None:
        """Return what the output must belong to.

        Raises: ParameterError when that is said twice.
        """
        found = [*self._named()]
        if len(found) > 1:
            names = " and ".join(name for name, _ in found)
            raise ParameterError(found[1][0], f"{names} both constrain the output; give one of them")
        return found[0][1] if found else None

    def _named(self) -> Iterator[tuple[str, Structure]]:
        """Yield each constraint with the field that holds it."""
        if self.response_format is not None and self.response_format.type != "text":
            yield "response_format", _of_response_format(self.response_format)
        vllm = self.structured_outputs
        if vllm is not None:
            given: tuple[Any, ...] = (vllm.json_, vllm.regex, vllm.choice, vllm.grammar)
            found = [*_of_each("structured_outputs", *given)]
            yield from found or ([("structured_outputs", ANY_OBJECT)] if vllm.json_object else [])
        yield from _of_each("guided", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        yield from _of_each("grammar", None, None, None, self.grammar)
        yield from _of_each("json_schema", self.json_schema, None, None, None)


def _of_response_format(given: ResponseFormat) -> Structure:
    if given.type == "json_object":
        return ANY_OBJECT
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise ParameterError("response_format", "response_format.json_schema.schema is missing")
    return json_structure(given.json_schema.schema_)


def json_structure(schema: Schema) -> Structure:
    """Return the structure of a JSON schema, given as JSON text or as its value."""
    return Structure("json_schema", schema if isinstance(schema, str) else json.dumps(schema, sort_keys=False))


def choice_structure(choices: list[str]) -> Structure:
    """Return the structure of a choice between texts."""
    return Structure("lark", "start: " + " | ".join(json.dumps(text) for text in choices))


def _of_each(
    name: str, schema: Schema | None, regex: str | None, choices: list[str] | None, grammar: str | None
) -> Iterator[tuple[str, Structure]]:
    if schema is not None:
        yield name, json_structure(schema)
    if regex is not None:
        yield name, Structure("regex", regex)
    if choices is not None:
        yield name, choice_structure(choices)
    if grammar is not None:
        yield name, Structure("lark", grammar)
