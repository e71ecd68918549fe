"""POST /v1/responses: the plain answer is what the last event carries, in OpenAI's order of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from toy_model import TEMPLATE, ToyExecutor, say
from toy_server import ToyServer, toy_server

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server() as running:
        yield running


def events_of(server: ToyServer, **body: Any) -> list[dict[str, Any]]:
    answer = server.post(PATH, stream=True, **body)
    assert answer.status_code == 200, answer.text
    events = []
    for block in filter(None, answer.text.split("\n\n")):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    return events


def plain(server: ToyServer, **body: Any) -> dict[str, Any]:
    answer = server.post(PATH, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_stream_ends_with_the_plain_answer(server: ToyServer) -> None:
    body = {"input": "hello", "max_output_tokens": 6, "temperature": 0, "instructions": "be brief"}
    whole, events = plain(server, **body), events_of(server, **body)
    assert whole["object"] == "response" and whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = whole["output"]
    assert item["role"] == "assistant" and item["content"][0]["type"] == "output_text"
    usage = whole["usage"]
    assert usage["output_tokens"] == 6 and usage["total_tokens"] == usage["input_tokens"] + 6
    kinds = [e["type"] for e in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    assert text == item["content"][0]["text"] == last["output"][0]["content"][0]["text"]
    assert last["status"] == "incomplete"
    assert last["usage"]["total_tokens"] == usage["total_tokens"]


def test_an_answer_that_ends_by_itself_is_completed() -> None:
    with toy_server(ToyExecutor(script=say(*b"hi"))) as server:
        assert plain(server, input="x")["status"] == "completed"
        assert events_of(server, input="x")[-1]["type"] == "response.completed"
    template = TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    with toy_server(ToyExecutor(script=say(*b"so</think>hi")), template=template) as server:
        thought, said = plain(server, input="x")["output"]
        assert thought["type"] == "reasoning" and thought["content"][0]["text"] == "so"
        assert said["content"][0]["text"] == "hi"
        kinds = [e["type"] for e in events_of(server, input="x")]
        assert kinds.count("response.output_item.done") == 2 and "response.reasoning_text.delta" in kinds


def test_every_form_of_input_is_the_same_conversation(server: ToyServer) -> None:
    texts = [
        plain(server, input=given, temperature=0, max_output_tokens=5)["output"][0]["content"][0]["text"]
        for given in (
            "hello",
            [{"role": "user", "content": "hello"}],
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
        )
    ]
    chat = server.chat(temperature=0, max_tokens=5)["choices"][0]["message"]["content"]
    assert texts == [chat] * 3


def test_a_format_constrains_the_text(server: ToyServer) -> None:
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["yes", "no"]}}}
    answer = plain(server, input="x", text=text)
    assert json.loads(answer["output"][0]["content"][0]["text"]) in ("yes", "no")


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
    ],
)
def test_what_is_not_done_is_refused_by_name(server: ToyServer, extra: dict[str, Any], param: str) -> None:
    refused = server.post(PATH, **{"input": "x", **extra})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_a_failure_is_an_event() -> None:
    with toy_server(ToyExecutor(poisons=lambda part: True)) as server:
        assert server.post(PATH, input="x").status_code == 500
        last = events_of(server, input="x")[-1]
        assert last["type"] == "response.failed" and "not finite" in last["response"]["error"]["message"]
