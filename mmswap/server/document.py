"""The OpenAPI document: what the two endpoints take, which read their bodies themselves, and how errors look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

REF = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
CHUNKS = "With stream: true. Events, each with a chunk as JSON; [DONE] is the last."
STREAM = {"schema": {"description": CHUNKS}}


def describe(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> None:
    """Let `app` describe itself. `bodies`: of POST requests, by path."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, bodies)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = ERROR
    wrong = {"description": "Why not", "content": {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}}
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"] |= {"4XX": wrong, "5XX": wrong}
            operation["responses"].pop("422", None)
    for name, body in bodies.items():
        schema = body.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {})
        schemas[body.__name__] = schema
        content = {"application/json": {"schema": {"$ref": REF.format(model=body.__name__)}}}
        operation = found["paths"][name]["post"]
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"]["200"]["content"]["text/event-stream"] = STREAM
    return found
