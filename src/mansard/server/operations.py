"""What operators and clients ask of a server beside text: health, metrics, version, models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from mansard import __version__
from mansard.server.errors import ApiError
from mansard.server.metrics import CONTENT_TYPE
from mansard.server.openapi import described
from mansard.server.schemas import ModelCard, ModelList, Status, Version
from mansard.server.service import Service, json_response, service_of

router = APIRouter()


@router.get("/health", **described("Say whether steps go on.", None, Status))
async def health(request: Request) -> Response:
    """Answer 200 while steps go on, 503 with the reason when they do not."""
    trouble = service_of(request).engine.health()
    if trouble is not None:
        raise ApiError(503, trouble, code="unhealthy")
    return json_response({"status": "ok"})


@router.get("/ready", **described("Say whether new requests are welcome.", None, Status))
async def ready(request: Request) -> Response:
    """Answer 200 while new requests are welcome, 503 when the server is stopping or not healthy."""
    service = service_of(request)
    trouble = "the server is stopping" if service.is_draining else service.engine.health()
    if trouble is not None:
        raise ApiError(503, trouble, code="not_ready")
    return json_response({"status": "ready"})


@router.get(
    "/metrics",
    summary="Return Prometheus metrics.",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics."""
    return Response(service_of(request).metrics.exposition(), headers={"content-type": CONTENT_TYPE})


@router.get("/version", **described("Return the server's version.", None, Version))
async def version() -> Response:
    """Return the server's version."""
    return json_response({"version": __version__})


@router.get("/v1/models", **described("List the names the model answers to.", None, ModelList))
async def list_models(request: Request) -> Response:
    """List the names the model answers to."""
    service = service_of(request)
    return json_response({"object": "list", "data": [_card(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}", **described("Describe one model.", None, ModelCard))
async def show_model(request: Request, name: str) -> Response:
    """Describe one model."""
    service = service_of(request)
    return json_response(_card(service, service.check_model(name)))


@router.post("/reset_prefix_cache", **described("Forget every cached prefix (where that is allowed).", None, Status))
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached prefix before the next step, where the server allows it."""
    service = service_of(request)
    if not service.options.allow_cache_reset:
        raise ApiError(
            403, "resetting the prefix cache is not allowed (start with --allow-cache-reset)", code="forbidden"
        )
    await service.engine.reset_prefix_cache()
    return json_response({"status": "ok"})


def _card(service: Service, name: str) -> dict[str, Any]:
    root = service.names[0]
    return {
        "id": name,
        "object": "model",
        "created": int(service.started_s),
        "owned_by": "mansard",
        "root": root,
        "parent": None if name == root else root,
        "max_model_len": service.model.max_model_len,
    }
