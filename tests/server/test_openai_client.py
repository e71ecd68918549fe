"""The official `openai` client against `mansard serve`: what an application does, end to end, on the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from real_server import needs_model, real_server

pytestmark = needs_model
KEY, NAME = "a-key", "small"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with real_server("--api-key", KEY, "--served-model-name", NAME) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given = {"model": NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 12, **options}
    return client.chat.completions.create(**given)


def test_models(client: openai.OpenAI) -> None:
    cards = client.models.list().data
    assert next(card.id for card in cards) == NAME
    assert client.models.retrieve(NAME).model_dump()["max_model_len"] == 2048


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    whole = ask(client)
    assert len(whole.choices[0].message.content.split()) > 2
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_logprobs_and_choices(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3, n=2, temperature=1.0, seed=5, max_tokens=6)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        entries = choice.logprobs.content
        assert "".join(e.token for e in entries) == choice.message.content or choice.finish_reason == "stop"
        assert all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries)
    again = ask(client, logprobs=True, top_logprobs=3, n=2, temperature=1.0, seed=5, max_tokens=6)
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]


def test_stop(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    word = whole.split()[2]
    cut = ask(client, stop=[word]).choices[0]
    assert cut.message.content == whole.split(word)[0] and cut.finish_reason == "stop"


class City(BaseModel):
    name: str
    continent: Literal["Europe", "Asia"]


def test_a_pydantic_model_comes_back(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=NAME, messages=QUESTION, response_format=City, temperature=0, max_tokens=60
    )
    city = parsed.choices[0].message.parsed
    assert city is not None and city.continent == "Europe"
    assert set(json.loads(parsed.choices[0].message.content or "")) == {"name", "continent"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    options = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 40}
    (call,) = ask(client, **options).choices[0].message.tool_calls
    assert call.function.name == "weather" and list(json.loads(call.function.arguments)) == ["city"]
    streamed = ""
    for chunk in ask(client, stream=True, **options):
        for part in chunk.choices[0].delta.tool_calls or ():
            streamed += part.function.arguments or ""
    assert streamed == call.function.arguments
    follow_up = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    assert ask(client, messages=follow_up, tools=[WEATHER], tool_choice="none").choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NAME, prompt=["The capital of France is", "2 + 2 ="], echo=True, logprobs=1, max_tokens=2, temperature=0
    )
    first, second = answer.choices
    assert first.text.startswith("The capital of France is Paris") and second.text.startswith("2 + 2 =")
    assert first.logprobs is not None and first.logprobs.token_logprobs is not None
    assert first.logprobs.token_logprobs[0] is None and len(first.logprobs.token_logprobs) == 7


def test_responses(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": NAME, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**given)
    assert whole.output_text == ask(client).choices[0].message.content and whole.usage is not None
    with client.responses.stream(**given) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Interest rates rose by a quarter point."]
    found = client.embeddings.create(model=NAME, input=texts).data  # the client asks for base64
    cat, kitten, rates = (item.embedding for item in found)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b, strict=True))
    assert dot(cat, cat) == pytest.approx(1.0, abs=1e-5)  # float32
    assert dot(cat, kitten) > dot(cat, rates)
    alone = client.embeddings.create(model=NAME, input=texts[2], encoding_format="float").data[0].embedding
    assert alone == pytest.approx(rates, abs=1e-6)


def test_errors(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(client, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, model="gpt-9")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        ask(stranger)


def test_a_greedy_answer_is_the_same_alone_and_among_others(client: openai.OpenAI) -> None:
    alone = {ask(client).choices[0].message.content for _ in range(5)}
    assert len(alone) == 1
    others = [[{"role": "user", "content": f"Tell me about the number {i}."}] for i in range(32)]
    with ThreadPoolExecutor(33) as pool:
        for _ in range(5):
            noise = [
                pool.submit(ask, client, messages=m, temperature=1.0, seed=i, max_tokens=3)
                for i, m in enumerate(others)
            ]
            assert ask(client).choices[0].message.content in alone
            for future in noise:
                future.result()


def test_a_greedy_answer_is_the_same_after_a_restart(client: openai.OpenAI) -> None:
    before = ask(client, logprobs=True).choices[0]
    with real_server("--threads", "1") as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as other:
        after = other.chat.completions.create(
            model="smollm2", messages=QUESTION, temperature=0, max_tokens=12, logprobs=True
        ).choices[0]
    assert after.message.content == before.message.content
    assert after.logprobs == before.logprobs, "bit-identical, whatever the number of threads"
