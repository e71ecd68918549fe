"""The OpenAPI document: complete, true of the answers, and no input that it allows makes the server fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from schemathesis.generation import GenerationMode
from toy_server import CHAT, COMPLETIONS, ToyServer, toy_server, until

from mansard.server import schemas

PATHS = {
    *(CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings", "/v1/models", "/v1/models/{name}"),
    *("/tokenize", "/detokenize", "/health", "/ready", "/version", "/metrics", "/reset_prefix_cache"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ToyServer]:
    with toy_server(server={"allow_cache_reset": True}) as running:
        yield running


def test_every_path_is_described(server: ToyServer) -> None:
    document = server.client.get("/openapi.json").json()
    assert set(document["paths"]) == PATHS
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"] and operation["responses"]["200"]["content"], path
            if path not in ("/metrics",):
                assert "503" in operation["responses"]
    referenced = set(str(document).split("#/components/schemas/")[1:])
    names = {text.split("'")[0] for text in referenced}
    assert names <= set(document["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "logprobs": True}, schemas.ChatCompletion),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1}, schemas.ChatCompletion),
        (COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 2}, schemas.TextCompletion),
        (COMPLETIONS, {"prompt": "xy", "prompt_logprobs": 1}, schemas.TextCompletion),
        ("/v1/responses", {"input": "x"}, schemas.ResponseAnswer),
        ("/v1/embeddings", {"input": "x"}, schemas.Embeddings),
        ("/tokenize", {"prompt": "x"}, schemas.TokenizeAnswer),
        ("/detokenize", {"tokens": [97]}, schemas.DetokenizeAnswer),
        (CHAT, {"messages": 5}, schemas.ErrorEnvelope),
    ],
)
def test_answers_are_as_described(server: ToyServer, path: str, body: dict[str, Any], model: type[BaseModel]) -> None:
    limit = {"max_output_tokens": 4} if path == "/v1/responses" else {"max_tokens": 4}
    model.model_validate(server.post(path, **body, **(limit if "v1" in path else {})).json())


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/health", schemas.Status),
        ("/ready", schemas.Status),
        ("/version", schemas.Version),
        ("/v1/models", schemas.ModelList),
        ("/v1/models/toy", schemas.ModelCard),
    ],
)
def test_facts_are_as_described(server: ToyServer, path: str, model: type[BaseModel]) -> None:
    model.model_validate(server.client.get(path).json())


@pytest.mark.filterwarnings("ignore")
def test_nothing_that_the_document_allows_makes_the_server_fail(server: ToyServer) -> None:
    """schemathesis draws requests from the document, sound ones and unsound ones; every answer is below 500."""
    document = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    for found in document.get_all_operations():
        check_operation(server, found.ok())
    assert server.client.get("/health").status_code == 200
    until(server.is_idle)


def check_operation(server: ToyServer, operation: Any) -> None:
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    strategy = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=strategy)
    def check(case: Any) -> None:
        answer = case.call(base_url=server.url, timeout=60)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400 and operation.method.upper() == "POST":
            schemas.ErrorEnvelope.model_validate(answer.json())

    check()
