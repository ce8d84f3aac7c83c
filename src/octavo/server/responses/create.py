"""From the body of POST /v1/responses to the generation that answers it."""

from __future__ import annotations

import json
from typing import Any

from octavo.errors import OctavoError
from octavo.server.chat_generation import prepared_chat
from octavo.server.errors import invalid
from octavo.server.protocol.parsing import parse
from octavo.server.protocol.renamed_fields import renamed
from octavo.server.protocol.responses import FIELD_NAMES, UNSUPPORTED_IN_RESPONSES, ResponseRequest
from octavo.server.responses.answer import Keep, ResponseAnswer
from octavo.server.responses.store import StoredResponse
from octavo.server.state import ServerState
from octavo.server.streaming import GenerationResponse


async def answer_response(state: ServerState, body: dict[str, Any]) -> GenerationResponse:
    """The answer to the request that `body` is. Raises an `OctavoError` for one that cannot be served."""
    request = parse(ResponseRequest, body, UNSUPPORTED_IN_RESPONSES)
    messages = request.turn(_earlier(state, request.previous_response_id))
    try:
        chat = await prepared_chat(state, request.chat_request(messages))
        generation = chat.generation(state, "resp")
    except OctavoError as error:
        raise renamed(error, FIELD_NAMES) from error
    keep = None if request.store is False else _keeper(state, messages)
    answer = ResponseAnswer(generation, chat.model, request, chat.tokenizer, keep)
    return GenerationResponse(generation, answer, stream=bool(request.stream), keep_alive_s=state.settings.keep_alive_s)


def _earlier(state: ServerState, response_id: str | None) -> list[dict[str, Any]]:
    if response_id is None:
        return []
    found = state.responses.find(response_id)
    if found is None:
        raise invalid(
            f"previous_response_id is {response_id!r:.100}, which is not kept here; it was not stored, was deleted, or "
            "gave way to newer ones: send the items of the conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    messages: list[dict[str, Any]] = json.loads(found.conversation)
    return messages


def _keeper(state: ServerState, messages: list[dict[str, Any]]) -> Keep:
    def keep(response_id: str, response: bytes, message: dict[str, Any]) -> None:
        conversation = json.dumps([*messages, message], separators=(",", ":")).encode("ascii")
        state.responses.keep(response_id, StoredResponse(response, conversation))

    return keep
