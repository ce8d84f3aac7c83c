"""The types that request models are made of: strict, bounded, and null wherever absent is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

MAX_TOKENS = 2**31 - 1
MAX_SALT = 256
MAX_LABEL = 1024  # characters of a name or an identifier

# A mark in a JSON schema, whose value says what stands there. A bound of the model's or of the server's own settings
# takes its place in /openapi.json; what is declared here holds for every model and server.
LIMITED = "x-octavo-limited"
Limited = Literal[
    "model name",
    "token id",
    "token id as text",
    "prompt text",
    "prompt ids",
    "input ids",
    "prompts",
    "suffix",
    "dimensions",
    "choices",
    "tools",
    "tool choice",
]


class RequestModel(BaseModel):
    """An object from a client. A field that it does not declare is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 8.0 is the whole number 8."""
    return int(value) if type(value) is float and value.is_integer() else value


def _integrals(values: Any) -> Any:
    if type(values) is list and float in set(map(type, values)):
        return [_integral(value) for value in values]
    return values


def limited(what: Limited) -> JsonDict:
    """`what` as the mark that `LIMITED` is, for `json_schema_extra`."""
    return {LIMITED: what}


# Last in an Annotated: bounds that come after it are lost in the JSON schema.
INTEGRAL = BeforeValidator(_integral)

# A request that waits rises one level in 256 steps: the range bounds how long others can be kept waiting.
Priority = Annotated[int, Field(ge=-100, le=100), INTEGRAL]
_PlainId = Annotated[int, Field(ge=0, le=MAX_TOKENS, json_schema_extra=limited("token id"))]
TokenId = Annotated[_PlainId, INTEGRAL]
TokenIds = Annotated[list[_PlainId], Field(fail_fast=True), BeforeValidator(_integrals)]
SomeTokenIds = Annotated[
    list[_PlainId],
    Field(fail_fast=True, min_length=1, json_schema_extra=limited("prompt ids")),
    BeforeValidator(_integrals),
]
# Of what nothing is generated after.
InputIds = Annotated[
    list[_PlainId],
    Field(fail_fast=True, min_length=1, json_schema_extra=limited("input ids")),
    BeforeValidator(_integrals),
]
Label = Annotated[str, StringConstraints(max_length=MAX_LABEL)]
ModelName = Annotated[Label, Field(json_schema_extra=limited("model name"))]


# Parts of JSON schemas that say which fields need which others. `check` of the same model refuses by these.
def absent(name: str) -> JsonDict:
    """The field `name` is not there, or null."""
    return {"properties": {name: {"type": "null"}}}


def true(name: str) -> JsonDict:
    """The field `name` is there and true."""
    return {"properties": {name: {"const": True}}, "required": [name]}
