"""The application: one model's engine behind OpenAI's HTTP API.

An endpoint is a module with a router; this puts them together, starts the engine with the application and
drains it at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mansard import __version__
from mansard.runtime.async_engine import AsyncEngine
from mansard.runtime.model import EngineOptions, LoadedModel
from mansard.runtime.text_engine import TextEngine
from mansard.server import chat, completions, errors, operations
from mansard.server.metrics import Metrics
from mansard.server.service import Service

DRAIN_S = 30.0


def create_app(
    model: LoadedModel,
    options: EngineOptions,
    names: Sequence[str] = (),
    stall_after_s: float = 120.0,
    drain_s: float = DRAIN_S,
) -> FastAPI:
    """Return the application that serves `model`; `names` are others that clients may call it by."""
    engine = TextEngine(model, options)
    metrics = Metrics(model.name, engine.stats)
    service = Service(
        model=model,
        engine=AsyncEngine(engine, metrics.observe, stall_after_s),
        metrics=metrics,
        names=tuple(dict.fromkeys((*names, model.name))),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await service.engine.drain(drain_s)
        await service.engine.stop()

    app = FastAPI(title="Mansard", version=__version__, lifespan=lifespan, redirect_slashes=False)
    app.state.service = service
    errors.install(app)
    for module in (chat, completions, operations):
        app.include_router(module.router)
    return app
