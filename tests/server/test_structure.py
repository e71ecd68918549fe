"""Structured output: always within the structure, or refused; finite numbers; the same after preemption."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from toy_model import ToyExecutor
from toy_server import CHAT, COMPLETIONS, ToyServer, toy_server

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server() as running:
        yield running


def text_of(server: ToyServer, **body: Any) -> str:
    answer = server.chat("x", max_tokens=300, **body)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def json_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize("seed", range(6))
def test_a_schema_holds_for_random_text(server: ToyServer, seed: int) -> None:
    value = json.loads(text_of(server, seed=seed, response_format=json_format(SCHEMA)))
    assert set(value) == {"name", "age"} and len(value["name"]) <= 8 and value["age"] <= 99


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-c]{1,9}x"}}, "[0-9]{3}-[a-c]{1,9}x"),
        ({"guided_regex": "[a-f]{4}"}, "[a-f]{4}"),
        ({"structured_outputs": {"choice": ["yes", 'n"o', "per\nhaps"]}}, 'yes|n"o|per\nhaps'),
        ({"guided_choice": ["only"]}, "only"),
        ({"grammar": 'root ::= "ab" | "cd" [0-9]'}, "ab|cd[0-9]"),
        ({"guided_grammar": 'start: "x" NUMBER\nNUMBER: /[0-9]{2}/'}, "x[0-9]{2}"),
        ({"guided_json": {"enum": ["a", 1]}}, '"a"|1'),
        ({"json_schema": {"const": "z"}}, '"z"'),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_way_to_say_it(server: ToyServer, extra: dict[str, Any], pattern: str, temperature: float) -> None:
    assert re.fullmatch(pattern, text_of(server, temperature=temperature, seed=3, **extra))
    frames = server.frames(CHAT, messages=[{"role": "user", "content": "x"}], temperature=temperature, seed=3, **extra)
    streamed = "".join(f["choices"][0]["delta"].get("content", "") for f in frames)
    assert re.fullmatch(pattern, streamed)


def test_json_mode_bounds_white_space(server: ToyServer) -> None:
    """A model that loves spaces once filled its whole length with them."""
    spaces = ToyExecutor(script=lambda part, place: None)
    spaces.table[:, [9, 10, 13, 32]] += 40
    with toy_server(spaces) as greedy:
        schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
        text = text_of(greedy, temperature=0, response_format=json_format(schema))
        assert len(json.loads(text)) == 2 and max(map(len, re.findall(r"\s+", text))) <= 17
    # Objects of random keys may grow for long, so only the beginning is looked at.
    answer = server.chat("x", max_tokens=30, seed=1, response_format={"type": "json_object"})
    assert answer["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"grammar": "rout:=x"}, "Expected ::="),
        ({"response_format": json_format({"type": "string", "pattern": "["})}, "unclosed character class"),
        ({"response_format": json_format({"type": "string", "if": {}})}, "Unimplemented"),
        ({"response_format": json_format({"type": "objekt"})}, "Invalid type"),
        ({"guided_json": "[1"}, "cannot be used"),
        ({"guided_json": "true"}, "must be an object"),
        ({"guided_regex": "(a"}, "unclosed group"),
        ({"guided_regex": "a" * 70_000}, "65,536"),
        ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "both constrain"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 2, "max_tokens": 3}, "min_tokens"),
    ],
)
def test_what_cannot_be_used_is_a_400_with_the_parsers_words(
    server: ToyServer, extra: dict[str, Any], words: str
) -> None:
    refused = server.post(CHAT, messages=[{"role": "user", "content": "x"}], **extra)
    assert refused.status_code == 400, refused.text
    assert words in refused.json()["error"]["message"]


def test_a_build_without_a_parser_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_server() as server:
        monkeypatch.setitem(sys.modules, "llguidance", None)
        refused = server.post(COMPLETIONS, prompt="x", guided_regex="a+b")
        assert refused.status_code == 400 and "llguidance" in refused.json()["error"]["message"]
        assert server.post(COMPLETIONS, prompt="x").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_forced_token_are_finite(server: ToyServer, stream: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "guided_choice": ["only"],
        "logprobs": True,
        "top_logprobs": 5,
        "temperature": 1e-6,
    }
    if stream:
        entries = [e for f in server.frames(CHAT, **body) for e in f["choices"][0]["logprobs"]["content"]]
    else:
        entries = server.post(CHAT, **body).json()["choices"][0]["logprobs"]["content"]
    assert "".join(e["token"] for e in entries).startswith("only")
    for entry in entries:
        assert all(-9999 <= e["logprob"] <= 0 for e in (entry, *entry["top_logprobs"]))


def test_preemption_and_neighbours_change_no_structured_output() -> None:
    bodies = [
        {"prompt": letter * 34, "max_tokens": 60, "seed": 5, "guided_regex": "([a-c]{5}-){5}end"} for letter in "ab"
    ]
    with toy_server() as server:
        alone = [server.post(COMPLETIONS, **body).json()["choices"] for body in bodies]
    assert all(re.fullmatch("([a-c]{5}-){5}end", c[0]["text"]) for c in alone)
    with toy_server(ToyExecutor(step_s=0.001), num_blocks=7) as server:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda body: server.post(COMPLETIONS, **body).json(), bodies))
        assert server.service.engine.stats().num_preemptions > 0
        assert [a["choices"] for a in answers] == alone
