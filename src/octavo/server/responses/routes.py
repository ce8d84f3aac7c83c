"""The routes of the Responses API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.responses import Response

from octavo.server.api import STREAMED, takes
from octavo.server.errors import invalid
from octavo.server.protocol.responses import ResponseRequest
from octavo.server.responses.create import answer_response
from octavo.server.state import state_of
from octavo.server.strict_json import read_object

router = APIRouter()
ResponseId = Annotated[str, Path(description="As `id` of the response has it.")]


class DeletedResponse(BaseModel):
    """OpenAI's fields."""

    id: str
    object: str = "response"
    deleted: bool = True


@router.post("/v1/responses", responses=STREAMED, openapi_extra=takes(ResponseRequest))
async def create_response(request: Request) -> Response:
    """Answer input items through the model's chat template."""
    return await answer_response(state_of(request), read_object(await request.body()))


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: ResponseId) -> Response:
    """A response that is kept."""
    for name in request.query_params:
        raise invalid(f"{name:.100} is not supported: a kept response is told whole; leave it out", param=name[:100])
    return Response(state_of(request).responses.get(response_id).body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: ResponseId) -> DeletedResponse:
    """Forget a response. Those that follow it have its conversation still."""
    state_of(request).responses.forget(response_id)
    return DeletedResponse(id=response_id)
