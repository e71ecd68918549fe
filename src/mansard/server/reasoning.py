"""Splits what a model thinks from what it answers: `<think>…</think>` before the reply.

Some templates open the thinking themselves, so a prompt that ends with the mark counts as well. Only thinking
at the beginning is split; the mark anywhere else is text. Source: the chat templates of DeepSeek-R1 and Qwen3.
"""

from __future__ import annotations

from collections.abc import Iterator

from mansard.server.tool_stream import Content, Event, Reasoning

BEGIN, END = "<think>", "</think>"
_SPACE = " \t\r\n"


def opens_thinking(prompt: str | None) -> bool:
    """Say whether a rendered prompt leaves the model in the middle of thinking."""
    return (prompt or "").rstrip(_SPACE).endswith(BEGIN)


class ReasoningSplit:
    """Reads one sequence's text; `is_open`: the prompt has opened the thinking."""

    def __init__(self, is_open: bool) -> None:
        self._state = "thinking" if is_open else "before"
        self._held = ""
        self._is_first = True  # white space around the marks is not part of either text

    def push(self, text: str) -> Iterator[Event]:
        """Take text and yield what it brings."""
        self._held += text
        if self._state == "before":
            self._look_for_begin()
        if self._state == "thinking":
            yield from self._think()
        if self._state == "after" and self._held:
            text = self._held.lstrip(_SPACE) if self._is_first else self._held
            self._held = ""
            if text:
                self._is_first = False
                yield Content(text)

    def finish(self) -> Iterator[Event]:
        """Give back what was held for a mark that never came."""
        if self._held:
            yield Reasoning(self._held) if self._state == "thinking" else Content(self._held)
            self._held = ""

    def _look_for_begin(self) -> None:
        bare = self._held.lstrip(_SPACE)
        if bare.startswith(BEGIN):
            self._held, self._state = bare[len(BEGIN) :], "thinking"
        elif not BEGIN.startswith(bare):
            self._state, self._is_first = "after", False

    def _think(self) -> Iterator[Event]:
        text = self._held.lstrip(_SPACE) if self._is_first else self._held
        thought, mark, rest = text.partition(END)
        if mark:
            self._state, self._is_first, self._held = "after", True, rest
            thought = thought.rstrip(_SPACE)
        else:
            cut = len(text) - _num_held(text)
            thought, self._held = text[:cut], text[cut:]
            self._is_first = self._is_first and not thought
        if thought:
            yield Reasoning(thought)


def _num_held(text: str) -> int:
    """Return how many last characters may be the white space and the beginning of the end mark."""
    for size in range(min(len(text), len(END) - 1), 0, -1):
        if END.startswith(text[-size:]):
            break
    else:
        size = 0
    bare = text[: len(text) - size]
    return size + len(bare) - len(bare.rstrip(_SPACE))
