"""/openapi.json: how errors stand in it, and the bounds that a running server has. The routes describe themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from octavo.errors import NotReady
from octavo.server.fill_in import fill_in_of
from octavo.server.protocol.fields import LIMITED
from octavo.server.state import ServerState


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
        """The document. Once the model is loaded, names, token ids and counts have the bounds that this server sets."""
        if self.openapi_schema is None:
            self.openapi_schema = self._document()
        state: ServerState = self.state.octavo
        document: dict[str, Any] = within_limits(self.openapi_schema, limits_of(state))
        return document

    def _document(self) -> dict[str, Any]:
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
        return document


def limits_of(state: ServerState) -> dict[str, dict[str, Any]]:
    """By mark, what bounds a field of requests; only what the settings say while there is no model."""
    settings = state.settings
    limits: dict[str, dict[str, Any]] = {
        "prompts": {"maxItems": settings.max_prompts},
        "choices": {"maximum": settings.max_choices},
    }
    try:
        info, tokenizer = state.ready_model()
    except NotReady:
        return limits
    last = info.vocab_size - 1
    limits["model name"] = {"enum": list(state.model_names())}
    limits["token id"] = {"maximum": last}
    limits["token id as text"] = {"pattern": f"^({_numbers_up_to(last)})$"}
    limits["dimensions"] = {"maximum": info.hidden_size}
    limits["prompt ids"] = {"maxItems": info.max_prompt_tokens}  # and one more where nothing is generated
    limits["input ids"] = {"maxItems": info.max_context}
    if not state.forms.offers_tools(tokenizer):
        limits["tools"] = {"maxItems": 0}
        limits["tool choice"] = {"enum": ["none", "auto"]}
    if fill_in_of(tokenizer) is None:
        limits["suffix"] = {"maxLength": 0}
    limits["prompt text"] = {} if tokenizer.encode("") else {"minLength": 1}
    return limits


def within_limits(schema: Any, limits: Mapping[str, Mapping[str, Any]]) -> Any:
    """A copy of `schema` with what `limits` have in the place of their marks."""
    if isinstance(schema, list):
        return [within_limits(each, limits) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: within_limits(value, limits) for name, value in schema.items() if name != LIMITED}
    return {**found, **limits.get(schema.get(LIMITED, ""), {})}


def _numbers_up_to(last: int) -> str:
    """A regular expression of the decimal numbers from 0 to `last`, without leading zeros."""
    digits = str(last)
    forms = ["0"]
    if len(digits) > 1:
        forms.append(f"[1-9][0-9]{{0,{len(digits) - 2}}}")
    for place, digit in enumerate(digits):  # as many digits, of which the first that differs is less
        first = 0 if place else 1
        if int(digit) > first:
            forms.append(f"{digits[:place]}[{first}-{int(digit) - 1}]" + "[0-9]" * (len(digits) - place - 1))
    return "|".join([*forms, digits])
