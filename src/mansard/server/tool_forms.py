"""The forms in which models write tool calls: data, chosen by what a model's chat template says.

A form says how a call is marked in the text; `tool_stream` reads all of them. Sources: the chat templates of
Hermes 2 Pro and Qwen 2.5/3 (`<tool_call>`), of Llama 3.1 (a bare object with `parameters`, several joined by
semicolons) and of Mistral 7B v0.3 and Small 3 (`[TOOL_CALLS]` and a list, or a name and `[ARGS]`).
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How one family writes calls.

    begin: the marks that may begin calls. end: the mark behind a call. at_start: a call may also begin the
    output as a bare object. name_first: `name[ARGS]{…}` beside `[{…}]`. keeps_special: the marks are special
    tokens, which must stay in the text. template_marks: what in a chat template betrays the form.
    """

    name: str
    begin: tuple[str, ...]
    end: str = ""
    at_start: bool = False
    name_first: bool = False
    keeps_special: bool = False
    id_length: int | None = None
    template_marks: tuple[str, ...] = ()

    def new_id(self) -> str:
        """Return an id for a call, of the kind that the family's templates accept."""
        if self.id_length is None:
            return f"call_{secrets.token_hex(12)}"
        alphabet = string.ascii_letters + string.digits
        return "".join(secrets.choice(alphabet) for _ in range(self.id_length))


HERMES = ToolForm("hermes", ("<tool_call>",), "</tool_call>", template_marks=("<tool_call>",))
LLAMA3 = ToolForm(
    "llama3",
    ("<|python_tag|>",),
    at_start=True,
    keeps_special=True,
    template_marks=("<|python_tag|>", "Environment: ipython"),
)
MISTRAL = ToolForm(
    "mistral",
    ("[TOOL_CALLS]",),
    name_first=True,
    keeps_special=True,
    id_length=9,
    template_marks=("[TOOL_CALLS]",),
)
BARE = ToolForm("bare", (), at_start=True)  # what constrained decoding writes when a call is demanded
FORMS = {form.name: form for form in (HERMES, LLAMA3, MISTRAL)}


def choose_form(name: str, template: str | None) -> ToolForm | None:
    """Return the form to read: by name, or `auto` from the chat template (Hermes where it says nothing)."""
    if name == "none":
        return None
    if name != "auto":
        return FORMS[name]
    for form in FORMS.values():
        if any(mark in (template or "") for mark in form.template_marks):
            return form
    return HERMES


def introduction(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a system text that explains `tools`, for models whose chat template does not know of any."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You may call functions. Their signatures in JSON:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer with its name and its arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "function", "arguments": {"argument": "value"}}\n</tool_call>'
    )
