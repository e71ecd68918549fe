"""A model's chat template: from messages to the prompt text.

A template is code that came with a model file. jinja2's sandbox keeps it from reaching Python, but not from
running for ever or filling memory: a repeat, a power, a padding filter or a list that contains itself twice
over is one operation that cannot be interrupted from inside. Counting steps and guarding operators one by one
leaves the next one open, so the template runs in a process of its own (template_worker.py) with a time limit
that kills it, a bound on memory and a bound on output. The process is started ahead, costs no start-up time
of ours, keeps compiled templates, and does not hold this process's interpreter lock: an ordinary render takes
about 0.1 ms. A process that was killed is replaced at the next render.

`render` waits for the answer, at most for the time limit; a server calls it in a worker thread.

Source: Hugging Face's chat template conventions (transformers, apply_chat_template).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.loading.template_process import TemplateProcess

MAX_SOURCE_CHARS = 1 << 20  # the longest known templates have some 30,000
BUILT_IN = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
        " + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role']"
        " + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}"
        "{% if message['role'] == 'system' %}{% set ns.system = message['content'] | trim + '\\n\\n' %}"
        "{% else %}"
        "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n'"
        " + ns.system + message['content'] | trim + '<end_of_turn>\\n' }}{% set ns.system = '' %}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
}


class ChatTemplateError(ValueError):
    """A template is missing, refuses its messages, is not valid, or exceeds its limits."""


class ChatTemplate:
    """Renders messages with one template; safe to share between threads."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        time_limit_s: float = 2.0,
        max_output_chars: int = 4 << 20,
        max_memory_bytes: int = 256 << 20,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"the chat template has {len(source):,} characters; at most {MAX_SOURCE_CHARS:,} are accepted"
            )
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._time_limit_s = time_limit_s
        self._max_output_chars = max_output_chars
        self._max_memory_bytes = max_memory_bytes
        self._lock = threading.Lock()
        self._worker: TemplateProcess | None = TemplateProcess(max_memory_bytes)

    @classmethod
    def choose(
        cls, own: str | None, override: str | None = None, *, bos_token: str = "", eos_token: str = ""
    ) -> ChatTemplate:
        """Take the template that the user asked for, or else the model's own.

        `override`: a built-in name (chatml, gemma, llama3), a file, or the text of a template.
        Raises: ChatTemplateError when there is neither, or the file cannot be read.
        """
        source = own if override is None else _override(override)
        if not source:
            names = ", ".join(sorted(BUILT_IN))
            raise ChatTemplateError(
                "the model has no chat template; name one with --chat-template "
                f"(a file, or one of {names}), or use plain completions"
            )
        return cls(source, bos_token, eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt text; encode it with special-token insertion off, for the template writes BOS.

        A message's content is a text, or a list of text parts, which are joined by newlines.
        Raises: ChatTemplateError when a message is not of that form, the template refuses or fails, or a
        limit is reached.
        """
        values = {
            **self._tokens,
            "messages": [_plain(i, m) for i, m in enumerate(messages)],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        answer = self._ask(values)
        if "text" not in answer:
            raise ChatTemplateError(f"the chat template failed: {answer.get('error')}")
        return str(answer["text"])

    def close(self) -> None:
        """End the template process; the next render starts a new one."""
        with self._lock:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def _ask(self, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            request = json.dumps(
                {
                    "source": self.source,
                    "variables": values,
                    "max_chars": self._max_output_chars,
                    "time_limit_s": self._time_limit_s,
                }
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"messages and template variables must be JSON values: {error}") from error
        with self._lock:
            if self._worker is None or not self._worker.alive:
                self._worker = TemplateProcess(self._max_memory_bytes)
            try:
                # An escaped character takes up to 12 bytes; the rest is for the frame around the text.
                return self._worker.ask(request.encode("ascii"), self._time_limit_s, 12 * self._max_output_chars + 4096)
            except (EOFError, TimeoutError) as error:
                self._worker.close()
                self._worker = None
                limit = f"{self._time_limit_s:g} s and {self._max_memory_bytes >> 20} MiB"
                raise ChatTemplateError(f"the chat template was stopped: it may use at most {limit}") from error


def _override(text: str) -> str:
    if text in BUILT_IN:
        return BUILT_IN[text]
    if "{" in text:
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(BUILT_IN))
        raise ChatTemplateError(f"--chat-template {text!r}: neither one of {names} nor a readable file") from error


def _plain(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Check a message and make its content one text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ChatTemplateError(f"messages[{index}] must be an object with a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        raise ChatTemplateError(
            f"messages[{index}].content is a {type(content).__name__}; it must be a text or text parts"
        )
    return {**message, "content": "\n".join(_part(index, part) for part in content)}


def _part(index: int, part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ChatTemplateError(f"messages[{index}].content has a part of type {kind!r}; only text parts are supported")
