"""The OpenAPI document: endpoints read their bodies themselves, so they also say here what they read and answer.

Schemas of bodies and answers are collected as components; every endpoint may answer with the error envelope.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from mansard.server.field_notes import FIELD_NOTES
from mansard.server.schemas import ErrorEnvelope

REF = "#/components/schemas/{model}"
_JSON = "application/json"
_ERRORS = {
    "400": "The request is not valid; `param` names what is wrong.",
    "401": "An API key is needed and was not given.",
    "404": "There is no such path or model.",
    "408": "The request took longer than it may.",
    "413": "The body is too large.",
    "415": "The body is not JSON by its content type.",
    "429": "The queue is full; see Retry-After.",
    "500": "Generating failed.",
    "503": "The server is not healthy, or is stopping.",
}
_WITHOUT_BODY = ("401", "404", "503")


def described(
    summary: str, body: type[BaseModel] | None, answer: type[BaseModel], events: str | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of a route that say what it reads and answers.

    events: what a stream's events are, where the endpoint can stream.
    """
    content: dict[str, Any] = {_JSON: {"schema": _schema(answer)}}
    if events is not None:
        content["text/event-stream"] = {"schema": {"type": "string", "description": events}}
    codes = _ERRORS if body is not None else _WITHOUT_BODY
    responses: dict[str, Any] = {
        code: {"description": _ERRORS[code], "content": {_JSON: {"schema": _schema(ErrorEnvelope)}}} for code in codes
    }
    extra: dict[str, Any] = {
        "responses": {"200": {"description": "The answer.", "content": content}, **responses},
    }
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {_JSON: {"schema": _schema(body)}}}
    return {"summary": summary, "openapi_extra": extra}


def install(app: FastAPI) -> None:
    """Let `app` answer /openapi.json with the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas: dict[str, Any] = {}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for part in (operation.get("requestBody", {}), *operation["responses"].values()):
                for content in part.get("content", {}).values():
                    content["schema"] = _as_component(content["schema"], schemas)
    document["components"] = {
        "schemas": dict(sorted(schemas.items())),
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    document["security"] = [{}, {"key": []}]
    return document


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=REF)
    for part in (schema, *schema.get("$defs", {}).values()):
        for name, field in part.get("properties", {}).items():
            if name in FIELD_NOTES:
                field.setdefault("description", FIELD_NOTES[name])
    return schema


def _as_component(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Move a model's schema, and those that it refers to, to the components; return a reference to it."""
    components.update(schema.pop("$defs", {}))
    if "properties" not in schema:
        return schema
    name = schema["title"]
    components[name] = schema
    return {"$ref": REF.format(model=name)}
