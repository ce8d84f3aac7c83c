"""The list of models: the one that is served, under each of its names."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from octavo.engine.serving import ModelInfo
from octavo.server.errors import model_not_found
from octavo.server.protocol.fields import limited
from octavo.server.state import state_of

router = APIRouter()
ModelId = Annotated[str, Path(json_schema_extra=limited("model name"))]


class Model(BaseModel):
    """OpenAI's fields, and what a client may want to know of the context."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    max_model_len: int
    max_prompt_tokens: int


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The names that `model` may take."""
    state = state_of(request)
    info, _ = state.ready_model()
    return ModelList(data=[_model(name, info) for name in state.model_names()])


@router.get("/v1/models/{model_id:path}")
async def one_model(request: Request, model_id: ModelId) -> Model:
    """One of them."""
    state = state_of(request)
    info, _ = state.ready_model()
    if model_id not in state.model_names():
        raise model_not_found(model_id)
    return _model(model_id, info)


def _model(name: str, info: ModelInfo) -> Model:
    return Model(
        id=name, created=info.created, max_model_len=info.max_context, max_prompt_tokens=info.max_prompt_tokens
    )
