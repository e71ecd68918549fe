"""What operators and clients ask of a server beside text: health, metrics, version, models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mansard import __version__
from mansard.server.errors import ApiError
from mansard.server.metrics import CONTENT_TYPE
from mansard.server.service import Service, json_response, service_of

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """Answer 200 while steps go on, 503 with the reason when they do not."""
    trouble = service_of(request).engine.health()
    if trouble is not None:
        raise ApiError(503, trouble, code="unhealthy")
    return json_response({"status": "ok"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics."""
    return Response(service_of(request).metrics.exposition(), headers={"content-type": CONTENT_TYPE})


@router.get("/version")
async def version() -> Response:
    """Return the server's version."""
    return json_response({"version": __version__})


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List the names the model answers to."""
    service = service_of(request)
    return json_response({"object": "list", "data": [_card(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str) -> Response:
    """Describe one model."""
    service = service_of(request)
    return json_response(_card(service, service.check_model(name)))


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
