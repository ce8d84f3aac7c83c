"""How errors stand in /openapi.json. The routes themselves describe what they take and give."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """OpenAI's fields."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


_MEANINGS = {
    400: "The request is at fault; `param` names the field.",
    401: "An API key is needed.",
    404: "There is no such model or path.",
    405: "The path does not take this method.",
    408: "The request did not arrive in time.",
    411: "The request has no length.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many requests wait; Retry-After says when to come again.",
    500: "A fault of the server.",
    503: "The server loads, drains or has failed, or the request waited too long.",
    504: "The request took longer than the server allows.",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": meaning} for status, meaning in _MEANINGS.items()
}


class Described(FastAPI):
    """An application whose description has no 422, which it never answers, and says that keys are bearer tokens."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
                servers=self.servers,
            )
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            components = document.setdefault("components", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                components.get("schemas", {}).pop(unused, None)
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{}, {"key": []}]
            self.openapi_schema = document
        return self.openapi_schema
