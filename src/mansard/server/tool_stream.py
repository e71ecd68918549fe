"""Reads tool calls out of a text as it grows.

What comes out is content, the begin of a call (its name) and pieces of its arguments exactly as the model wrote
them, so the pieces of a stream join to the arguments of the plain reply by construction: both are this
reader's. Text that only looked like a call is given back as content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from mansard.server.tool_forms import ToolForm

_SPACE = " \t\r\n"
_SEPARATORS = _SPACE + "[],;"
_ARGS = "[ARGS]"
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call's place among the calls, its id and its name."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON of a call's arguments."""

    index: int
    text: str


Event = Content | Reasoning | CallBegin | CallArguments


class JsonValue:
    """Finds the end of one JSON value, character by character."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._kind = ""  # of the outermost value: "" not begun, "{" or "[", '"', "x" for a number or a word
        self.text = ""

    def feed(self, character: str) -> bool:
        """Take a character; say whether the value ended with it. One that ends a number is not taken."""
        if not self._kind:
            if character in _SPACE:
                return False
            self._kind = character if character in '{["' else "x"
        if self._kind == "x" and character in ",]}" + _SPACE:
            return True
        self.text += character
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self._kind != "x" and not self._in_string and self._depth <= 0

    @property
    def is_bare(self) -> bool:
        """Say whether the value is a number or a word, whose end is seen only behind it."""
        return self._kind == "x"


class _CallObject:
    """One call written as an object: {"name": …, "arguments": {…}} with the keys in any order."""

    def __init__(self) -> None:
        self.raw = ""
        self.name: str | None = None
        self.arguments = ""  # not handed out yet
        self.num_sent = 0
        self.is_done = False
        self.is_broken = False
        self._key: str | None = None
        self._value: JsonValue | None = None

    def feed(self, character: str) -> None:
        """Take the next character, of which the first is the opening brace."""
        self.raw += character
        if self._value is not None:
            self._feed_value(self._value, character)
        elif character == '"' and self._key is None:
            self._value = JsonValue()
            self._value.feed(character)
        elif character == ":" and self._key is not None:
            self._value = JsonValue()
        elif character == "}":
            self.is_done = True
            self.is_broken = self.name is None
        elif character not in _SPACE + "," and len(self.raw) > 1:
            self.is_broken = True

    def _feed_value(self, value: JsonValue, character: str) -> None:
        before = len(value.text)
        ended = value.feed(character)
        if self._key in ("arguments", "parameters") and not value.text.startswith('"'):
            self.arguments += value.text[before:]
        if not ended:
            return
        self._value = None
        try:
            parsed = json.loads(value.text)
        except ValueError:
            self.is_broken = True
            return
        if self._key is None:
            self._key = str(parsed)
            self.is_broken = self._key not in ("name", "arguments", "parameters", "type", "id", "function")
            return
        if self._key in ("name", "function") and isinstance(parsed, str):
            self.name = parsed
        elif self._key in ("arguments", "parameters") and isinstance(parsed, str):
            self.arguments += parsed
        self._key = None
        if value.is_bare:
            self.raw = self.raw[:-1]
            self.feed(character)

    def take_arguments(self) -> str:
        """Return what may be sent of the arguments; a call without any has an empty object."""
        text, self.arguments = self.arguments, ""
        self.num_sent += len(text)
        if self.is_done and not self.num_sent:
            self.num_sent += 2
            return "{}"
        return text


class ToolStream:
    """Reads one sequence's text; `form` says how its calls are written."""

    def __init__(self, form: ToolForm) -> None:
        self._form = form
        self._held = ""  # may become a mark
        self._mark = ""  # the one that was read last, while no call has begun behind it
        self._is_start = form.at_start
        self._in_calls = False
        self._name = ""  # of a call in the form name[ARGS]{…}
        self._call: _CallObject | None = None
        self._arguments: JsonValue | None = None  # of such a call
        self._began = False
        self.num_calls = 0

    def push(self, text: str) -> Iterator[Event]:
        """Take text and yield what it brings; content is joined to as few pieces as can be."""
        content = ""
        for character in text:
            for event in self._feed(character):
                if isinstance(event, Content):
                    content += event.text
                    continue
                if content:
                    yield Content(content)
                    content = ""
                yield event
        if content:
            yield Content(content)

    def finish(self) -> Iterator[Event]:
        """Give back what was held for a mark or a call that never came."""
        held = self._held + self._name
        if self._call is not None and not self._began:
            held += self._call.raw
        if held.strip(_SPACE) and self._in_calls:
            held = self._mark + held
        self._held = self._name = self._mark = ""
        if held.strip(_SPACE):
            yield Content(held)

    def _feed(self, character: str) -> Iterator[Event]:
        if self._call is not None:
            yield from self._feed_call(self._call, character)
        elif self._arguments is not None:
            yield from self._feed_arguments(self._arguments, character)
        elif self._in_calls:
            yield from self._between_calls(character)
        else:
            yield from self._feed_content(character)

    def _feed_content(self, character: str) -> Iterator[Event]:
        if self._is_start and character == "{":
            self._in_calls, self._held = True, ""
            yield from self._between_calls(character)
            return
        if self._is_start and character not in _SPACE:
            self._is_start = False
        self._held += character
        if self._held.strip(_SPACE) in self._form.begin:
            self._mark, self._held = self._held, ""
            self._in_calls, self._is_start = True, False
            return
        while self._held and not self._may_become_mark(self._held):
            yield Content(self._held[0])
            self._held = self._held[1:]

    def _may_become_mark(self, text: str) -> bool:
        """Say whether `text` begins a mark; white space before one is not content either."""
        bare = text.lstrip(_SPACE)
        return not bare or any(mark.startswith(bare) for mark in self._form.begin)

    def _between_calls(self, character: str) -> Iterator[Event]:
        if character == "{" and not (self._held + self._name).strip(_SEPARATORS):
            self._name = ""
            self._call = _CallObject()
            self._call.feed(character)
            return
        if self._form.name_first:
            if self._name or character == "[" or character not in _SEPARATORS:
                yield from self._feed_name(character)
            return
        if not self._held and character in _SEPARATORS:
            return
        self._held += character
        if self._held == self._form.end or self._held in self._form.begin:
            self._in_calls = self._held != self._form.end
            self._held = ""
        elif not any(mark.startswith(self._held) for mark in (self._form.end, *self._form.begin)):
            self._in_calls = False
            text, self._held = self._held, ""
            if self._mark:
                yield Content(self._mark)
                self._mark = ""
            for again in text:
                yield from self._feed_content(again)

    def _feed_name(self, character: str) -> Iterator[Event]:
        """Read `name[ARGS]{` or `name{`."""
        self._name += character
        if character == "{":
            name = self._name[:-1].removesuffix(_ARGS).strip()
            self._name = ""
            yield self._begin(name)
            self._arguments = JsonValue()
            yield from self._feed_arguments(self._arguments, character)
        elif self._name in self._form.begin:
            self._name = ""
        elif len(self._name) > _MAX_NAME:
            self._in_calls = False
            text, self._name = self._name, ""
            yield Content(text)

    def _feed_arguments(self, value: JsonValue, character: str) -> Iterator[Event]:
        ended = value.feed(character)
        yield CallArguments(self.num_calls - 1, character)
        if ended:
            self._arguments = None

    def _feed_call(self, call: _CallObject, character: str) -> Iterator[Event]:
        call.feed(character)
        if call.is_broken:
            self._call = None
            if not self._began:
                self._in_calls = False
                yield Content(self._mark + call.raw)
            self._began = False
            return
        if call.name is not None and not self._began:
            self._began = True
            yield self._begin(call.name)
        if self._began and (text := call.take_arguments()):
            yield CallArguments(self.num_calls - 1, text)
        if call.is_done:
            self._call, self._began = None, False

    def _begin(self, name: str) -> CallBegin:
        self.num_calls += 1
        self._mark = ""
        return CallBegin(self.num_calls - 1, self._form.new_id(), name)
