"""The application: one model's engine behind OpenAI's HTTP API.

An endpoint is a module with a router; this puts them together, starts the engine with the application and
drains it at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from mansard import __version__
from mansard.runtime.async_engine import AsyncEngine
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.runtime.text_engine import TextEngine, Wrap
from mansard.server import chat, completions, embeddings, errors, openapi, operations, responses, tokenization
from mansard.server.gate import Gate
from mansard.server.metrics import Metrics
from mansard.server.options import ServerOptions
from mansard.server.service import TIMEOUT_HEADER, Service

DESCRIPTION = "OpenAI's HTTP API for one model, with vLLM's names for what OpenAI does not have."


def bare_app(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """Return the application without a model, which can tell what it would do and nothing else."""
    app = FastAPI(
        title="Mansard",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    openapi.install(app)
    for module in (chat, completions, responses, embeddings, tokenization, operations):
        app.include_router(module.router)
    return app


def create_app(
    model: LoadedModel, options: EngineOptions, server: ServerOptions | None = None, wrap: Wrap | None = None
) -> FastAPI:
    """Return the application that serves `model`; `wrap`: see TextEngine."""
    allowed = server or ServerOptions()
    engine = TextEngine(model, options, wrap)
    metrics = Metrics(model.name, engine.stats)
    service = Service(
        model=model,
        engine=AsyncEngine(engine, metrics.observe, allowed.stall_after_s, metrics.observe_step),
        metrics=metrics,
        names=tuple(dict.fromkeys((*allowed.names, model.name))),
        options=allowed,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await service.engine.drain(allowed.drain_s)
        await service.engine.stop()

    app = bare_app(lifespan)
    app.state.service = service
    if allowed.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allowed.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", TIMEOUT_HEADER],
        )
    app.add_middleware(
        Gate,
        api_keys=allowed.api_keys,
        max_open=options.max_num_seqs + allowed.max_queued,
        max_waiting=allowed.max_queued,
        num_waiting=lambda: engine.stats().num_waiting,
    )
    return app
