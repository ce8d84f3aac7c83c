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


Whole = Annotated[int, BeforeValidator(_integral)]
TokenId = Annotated[Whole, Field(ge=0, le=MAX_TOKENS)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]], Field(fail_fast=True)]
Label = Annotated[str, StringConstraints(max_length=MAX_LABEL)]
