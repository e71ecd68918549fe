"""POST /v1/embeddings: a unit vector for each text.

The vector is the mean of the hidden states behind the final norm over all tokens of the text, or the last
token's (`pooling`: mean, the default, or last). Models trained to embed say which of the two they want; any other
model's vectors are what its hidden states happen to say. Source: OpenAI API reference, embeddings.
"""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mansard.core.types import SamplingParams
from mansard.runtime.parameter_error import ParameterError
from mansard.runtime.pooling import Floats, Pooling, PoolingExecutor
from mansard.runtime.prompts import RequestTraits, Submission
from mansard.server.bodies import read_body, warnings
from mansard.server.body import Body
from mansard.server.errors import ApiError
from mansard.server.event_stream import unless_disconnected
from mansard.server.openapi import described
from mansard.server.protocol import TokenIds
from mansard.server.schemas import Embeddings
from mansard.server.service import Service, json_response, new_id, raise_error, service_of

router = APIRouter()


class EmbeddingBody(Body):
    """The body of POST /v1/embeddings."""

    input: str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
    model: str | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Literal["mean", "last"] = "mean"
    user: str | None = None

    def texts(self) -> list[str | list[int]]:
        """Return each text or its token ids.

        Raises: ParameterError when there is none.
        """
        given: Any = self.input
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not given or not all(given):
            raise ParameterError("input", "input is empty or holds an empty text; each needs at least 1 token")
        return list(given)


@router.post("/v1/embeddings", **described("Embed texts as vectors.", EmbeddingBody, Embeddings))
async def create_embeddings(request: Request) -> Response:
    """Embed texts as vectors."""
    service = service_of(request)
    body = await read_body(request, EmbeddingBody)
    model = service.check_model(body.model)
    texts = body.texts()
    service.check_count(len(texts), "input")
    size = service.model.spec.hidden_size
    if body.dimensions not in (None, size):
        raise ParameterError("dimensions", f"dimensions is {body.dimensions}; the model's vectors have {size}")
    if not hasattr(service.model.executor, "pools"):
        raise ApiError(400, "this executor hands out no hidden states", code="unsupported_value")
    submissions = await _prepare(service, texts, request.state.log)
    vectors = await unless_disconnected(request.receive, _embed(service, submissions, body, service.timeout_s(request)))
    if vectors is None:
        return Response(status_code=499)
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector, body.encoding_format)}
        for i, vector in enumerate(vectors)
    ]
    count = sum(len(s.request.prompt_token_ids) for s in submissions)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return json_response({"object": "list", "data": data, "model": model, "usage": usage}, warnings(body))


async def _prepare(service: Service, texts: list[str | list[int]], log: dict[str, Any]) -> list[Submission]:
    """Tokenize off the event loop; a salt of its own keeps each text from skipping tokens by a prefix hit."""
    request_id, now = new_id("embd"), service.engine.now()
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

    def work() -> list[Submission]:
        traits = [RequestTraits(f"{request_id}-{i}", now, cache_salt=f"{request_id}-{i}") for i in range(len(texts))]
        prepare = service.engine.prompts.completion
        return [prepare(text, params, t) for text, t in zip(texts, traits, strict=True)]

    submissions = await service.engine.in_pool(work)
    log["prompt_tokens"] = sum(len(s.request.prompt_token_ids) for s in submissions)
    return submissions


async def _embed(
    service: Service, submissions: list[Submission], body: EmbeddingBody, timeout_s: float | None
) -> list[Floats]:
    pools = cast(PoolingExecutor, service.model.executor).pools
    mine = {s.request.id: Pooling(body.pooling, len(s.request.prompt_token_ids)) for s in submissions}
    pools.update(mine)
    try:
        async with aclosing(service.stream(*submissions, timeout_s=timeout_s)) as deltas:
            async for delta in deltas:
                raise_error(delta)
        return [pool.embedding() for pool in mine.values()]
    except ValueError as error:
        raise ApiError(500, str(error), code="generation_failed") from error
    finally:
        for request_id in mine:
            pools.pop(request_id, None)


def _encoded(vector: Floats, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return [float(value) for value in vector]
