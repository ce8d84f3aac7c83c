"""The types that request models are made of: strict, bounded, and null wherever absent is allowed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

MAX_TOKENS = 2**31 - 1
MAX_SALT = 256
MAX_LABEL = 1024  # characters of a name or an identifier


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


# Last in an Annotated: bounds that come after it are lost in the JSON schema.
INTEGRAL = BeforeValidator(_integral)
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS), INTEGRAL]
_PlainId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
TokenIds = Annotated[list[_PlainId], Field(fail_fast=True), BeforeValidator(_integrals)]
SomeTokenIds = Annotated[list[_PlainId], Field(fail_fast=True, min_length=1), BeforeValidator(_integrals)]
Label = Annotated[str, StringConstraints(max_length=MAX_LABEL)]
