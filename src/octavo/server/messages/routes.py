"""The routes of the Messages API, from a body to the generation that answers it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from octavo.errors import OctavoError
from octavo.server.api import STREAMED, takes
from octavo.server.chat_generation import prepared_chat
from octavo.server.messages.answer import MessageAnswer
from octavo.server.protocol.message_requests import (
    FIELD_NAMES,
    UNSUPPORTED_IN_MESSAGES,
    CountTokensRequest,
    MessageRequest,
)
from octavo.server.protocol.parsing import parse
from octavo.server.protocol.renamed_fields import renamed
from octavo.server.state import ServerState, state_of
from octavo.server.streaming import GenerationResponse
from octavo.server.strict_json import read_object


class ErrorObject(BaseModel):
    """Anthropic's fields."""

    type: str
    message: str


class ErrorAnswer(BaseModel):
    """The body of every error of these routes."""

    type: str = "error"
    error: ErrorObject
    request_id: str


class CountedTokens(BaseModel):
    """Of the whole prompt, with what the chat template adds."""

    input_tokens: int


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 404, 405, 408, 411, 413, 415, 429, 500, 503, 504)
}
router = APIRouter(responses=_ERRORS)


@router.post("/v1/messages", responses=STREAMED, openapi_extra=takes(MessageRequest))
async def create_message(request: Request) -> Response:
    """Answer a conversation, as Anthropic's API has it."""
    return await answer_message(state_of(request), read_object(await request.body()))


@router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensRequest))
async def count_tokens(request: Request) -> CountedTokens:
    """The tokens of the prompt that such a conversation becomes."""
    asked = parse(CountTokensRequest, read_object(await request.body()), UNSUPPORTED_IN_MESSAGES)
    try:
        chat = await prepared_chat(state_of(request), asked.chat_request(), is_answered=False)
    except OctavoError as error:
        raise renamed(error, FIELD_NAMES) from error
    return CountedTokens(input_tokens=len(chat.token_ids))


async def answer_message(state: ServerState, body: dict[str, Any]) -> GenerationResponse:
    """The answer to the request that `body` is. Raises an `OctavoError` for one that cannot be served."""
    request = parse(MessageRequest, body, UNSUPPORTED_IN_MESSAGES)
    try:
        chat = await prepared_chat(state, request.chat_request(), reads_stops=True)
        generation = chat.generation(state, "msg")
    except OctavoError as error:
        raise renamed(error, FIELD_NAMES) from error
    answer = MessageAnswer(generation, chat.model, request.max_tokens)
    return GenerationResponse(generation, answer, stream=bool(request.stream), keep_alive_s=state.settings.keep_alive_s)
