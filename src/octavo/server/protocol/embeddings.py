"""The request of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.request import Pooling
from octavo.server.protocol.completions import Input
from octavo.server.protocol.fields import (
    INTEGRAL,
    MAX_SALT,
    MAX_TOKENS,
    Label,
    ModelName,
    Priority,
    RequestModel,
    limited,
)

_Dimensions = Annotated[int, Field(ge=1, le=MAX_TOKENS, json_schema_extra=limited("dimensions")), INTEGRAL]


class EmbeddingRequest(RequestModel):
    model: ModelName | None = None
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: _Dimensions | None = None
    user: Label | None = None
    pooling: Pooling | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs, one by one."""
        given: Any = self.input
        return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
