"""Tool calls and reasoning: the three forms, read from texts cut anywhere, and as the API answers them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import TEMPLATE, ToyExecutor, say
from toy_server import CHAT, ToyServer, toy_server

from mansard.server.reasoning import ReasoningSplit
from mansard.server.reply import delta_of, message_of
from mansard.server.tool_forms import BARE, HERMES, LLAMA3, MISTRAL, ToolForm, choose_form
from mansard.server.tool_stream import ToolStream

MESSAGES = [{"role": "user", "content": "weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 6}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ARGUMENTS = '{"city": "Par}is \\" \\\\", "days": [1, {"x": 2}]}'

Found = tuple[str | None, list[tuple[str, str]]]
CASES: list[tuple[ToolForm, str, Found]] = [
    (HERMES, f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>', (None, [("f", ARGUMENTS)])),
    (
        HERMES,
        'Let me see.\n<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name": "g"}</tool_call>',
        ("Let me see.", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    (HERMES, "no <tool call> here, a < b", ("no <tool call> here, a < b", [])),
    (HERMES, "<tool_call>\nnot a call", ("<tool_call>not a call", [])),
    (HERMES, '<tool_call>{"nome": "f"}</tool_call>', ('<tool_call>{"nome": "f"}</tool_call>', [])),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', (None, [("f", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a', (None, [("f", '{"a')])),
    (LLAMA3, f'{{"name": "f", "parameters": {ARGUMENTS}}}', (None, [("f", ARGUMENTS)])),
    (
        LLAMA3,
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}',
        (None, [("f", "{}"), ("g", '{"a": 1}')]),
    ),
    (LLAMA3, '{"answer": 42}', ('{"answer": 42}', [])),
    (LLAMA3, 'See {"name": "f", "parameters": {}}', ('See {"name": "f", "parameters": {}}', [])),
    (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}, {{"name": "g", "arguments": {{}}}}]',
        (None, [("f", ARGUMENTS), ("g", "{}")]),
    ),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"b": 2}', (None, [("f", '{"a": 1}'), ("g", '{"b": 2}')])),
    (MISTRAL, "[TOOL] calls", ("[TOOL] calls", [])),
    (BARE, f'{{"name": "f", "arguments": {ARGUMENTS}}}', (None, [("f", ARGUMENTS)])),
    (BARE, '{"name": "f", "arguments": 5}', (None, [("f", "5")])),
]


def found_in(message: dict[str, Any]) -> Found:
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
    return message["content"], calls


@pytest.mark.parametrize(("form", "text", "found"), CASES)
def test_calls_are_read(form: ToolForm, text: str, found: Found) -> None:
    stream = ToolStream(form)
    assert found_in(message_of([*stream.push(text), *stream.finish()])) == found


@settings(deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_a_text_cut_anywhere_gives_the_same(case: tuple[ToolForm, str, Found], data: st.DataObject) -> None:
    form, text, found = case
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    stream, content, calls = ToolStream(form), "", {}
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    for events in ([*stream.push(piece)] for piece in pieces):
        delta = delta_of(events)
        content += delta.get("content", "")
        for part in delta.get("tool_calls", ()):
            call = calls.setdefault(part["index"], ["", ""])
            call[0] += part["function"].get("name", "")
            call[1] += part["function"]["arguments"]
    content += delta_of(stream.finish()).get("content", "")
    assert (content or None, [(name, arguments) for name, arguments in calls.values()]) == found


def test_the_template_tells_the_form() -> None:
    assert choose_form("auto", "… <tool_call> …") is HERMES
    assert choose_form("auto", "… <|python_tag|> …") is LLAMA3
    assert choose_form("auto", "… [TOOL_CALLS] …") is MISTRAL
    assert choose_form("auto", None) is HERMES and choose_form("llama3", "<tool_call>") is LLAMA3
    assert choose_form("none", "<tool_call>") is None
    assert len(MISTRAL.new_id()) == 9 and HERMES.new_id() != HERMES.new_id()


THINKING = [
    (False, "<think>\nhm, </ well\n</think>\n\nYes", ("hm, </ well", "Yes")),
    (True, "hm</think>Yes </think>", ("hm", "Yes </think>")),
    (False, "No <think>x</think>", ("", "No <think>x</think>")),
    (True, "cut off", ("cut off", "")),
    (False, " <thin", ("", " <thin")),
]


@settings(deadline=None)
@given(st.sampled_from(THINKING), st.data())
def test_thinking_is_split_from_the_answer(case: Any, data: st.DataObject) -> None:
    is_open, text, (thought, said) = case
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    split = ReasoningSplit(is_open)
    events = [e for a, b in pairwise(cuts) for e in split.push(text[a:b])]
    message = message_of([*events, *split.finish()])
    assert (message.get("reasoning_content", ""), message["content"]) == (thought, said)


def calls_of(server: ToyServer, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the plain choice and the stream's frames of a request with tools."""
    body = {"messages": MESSAGES, "tools": [WEATHER, CLOCK], "max_tokens": 200, "seed": 1, **body}
    (choice,) = server.post(CHAT, **body).json()["choices"]
    return choice, server.frames(CHAT, **body)


def arguments_in(frames: list[dict[str, Any]]) -> str:
    deltas = [c["delta"] for f in frames for c in f["choices"]]
    return "".join(t["function"]["arguments"] for d in deltas for t in d.get("tool_calls", ()))


def test_auto_reads_what_the_model_writes() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    with toy_server(ToyExecutor(script=say(*text.encode())), max_model_len=2048) as server:
        choice, frames = calls_of(server)
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["type"] == "function" and call["id"].startswith("call_")
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
        assert arguments_in(frames) == call["function"]["arguments"]
        first = next(c["delta"] for f in frames for c in f["choices"] if c["delta"].get("tool_calls"))
        assert first["tool_calls"][0]["function"]["name"] == "weather" and first["role"] == "assistant"
        assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"
        plain, _ = calls_of(server, tool_choice="none")
        assert plain["message"]["content"] == text and "tool_calls" not in plain["message"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_required_and_named_calls_satisfy_the_schema(temperature: float) -> None:
    with toy_server(max_model_len=2048) as server:
        named = {"type": "function", "function": {"name": "weather"}}
        for choice_of_tool, reason in (("required", "tool_calls"), (named, "stop")):
            tools = [WEATHER]
            choice, frames = calls_of(server, tools=tools, tool_choice=choice_of_tool, temperature=temperature)
            (call,) = choice["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert call["function"]["name"] == "weather" and set(arguments) == {"city"}
            assert choice["finish_reason"] == reason
            assert arguments_in(frames) == call["function"]["arguments"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_contradictions_are_refused(extra: dict[str, Any], param: str) -> None:
    with toy_server(max_model_len=2048) as server:
        refused = server.post(CHAT, **{"messages": MESSAGES, "tools": [WEATHER], **extra})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_the_whole_round_reaches_the_prompt() -> None:
    """A template that knows no tools gets them, the calls and the answers as text."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    with toy_server(max_model_len=2048) as server:
        tokens = server.post("/tokenize", messages=messages, tools=[WEATHER]).json()["tokens"]
        prompt = server.post("/detokenize", tokens=tokens).json()["prompt"]
        assert '"description": "The weather of a city."' in prompt
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in prompt
        assert "<tool_response>\nsunny\n</tool_response>" in prompt
        assert server.post(CHAT, messages=messages, tools=[WEATHER], max_tokens=2).status_code == 200
    calls = "{{ m.tool_calls | default([]) | tojson }}"
    knowing = "{{ tools | tojson }}{% for m in messages %}" + calls + "{{ m.content }}{% endfor %}"
    with toy_server(template=knowing) as server:
        tokens = server.post("/tokenize", messages=messages, tools=[WEATHER]).json()["tokens"]
        prompt = server.post("/detokenize", tokens=tokens).json()["prompt"]
        assert prompt.startswith('[{"type": "function"') and '"arguments": {"city": "Paris"}' in prompt


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_answered_apart(opened: bool) -> None:
    template = TEMPLATE.replace("assistant\n", "assistant\n<think>\n") if opened else TEMPLATE + "{# <think> #}"
    text = ("" if opened else "<think>") + "so so</think>\nYes."
    with toy_server(ToyExecutor(script=say(*text.encode())), template=template) as server:
        message = server.chat("x")["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("so so", "Yes.")
        deltas = [f["choices"][0]["delta"] for f in server.frames(CHAT, messages=MESSAGES)]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "so so"
        assert "".join(d.get("content", "") for d in deltas) == "Yes."
    with toy_server(
        ToyExecutor(script=say(*text.encode())), template=template, server={"split_reasoning": False}
    ) as server:
        assert server.chat("x")["choices"][0]["message"]["content"] == text
