"""The routes of the generation API, and what /openapi.json says of them. Each body is read strictly, by hand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.chat import answer_chat
from octavo.server.completions import answer_completion
from octavo.server.embeddings import answer_embeddings
from octavo.server.protocol.answers import ChatCompletion, Completion, Detokenized, Embeddings, Tokenized
from octavo.server.protocol.chat import ChatRequest
from octavo.server.protocol.completions import CompletionRequest
from octavo.server.protocol.embeddings import EmbeddingRequest
from octavo.server.protocol.fields import RequestModel
from octavo.server.protocol.tokens import DetokenizeRequest, TokenizeChat, TokenizeText
from octavo.server.state import state_of
from octavo.server.strict_json import read_object
from octavo.server.tokenize import answer_detokenize, answer_tokenize

router = APIRouter()

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with stream: true, its chunks as server-sent events.",
        "content": {"text/event-stream": {}},
    }
}


def takes(*models: type[RequestModel]) -> dict[str, Any]:
    """A body that is one of `models`, for `openapi_extra`."""
    schemas = [_schema(model) for model in models]
    body = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    return {"requestBody": {"required": True, "content": {"application/json": body}}}


def _schema(model: type[RequestModel]) -> Any:
    """With every definition in its place: in `openapi_extra` there is no other to refer to."""
    schema = model.model_json_schema()
    return _resolved(schema, schema.pop("$defs", {}))


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    # A discriminator names its branches by reference, and is a hint only.
    return {name: _resolved(value, definitions) for name, value in schema.items() if name != "discriminator"}


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses=STREAMED,
    openapi_extra=takes(ChatRequest),
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation through the model's chat template."""
    return await answer_chat(state_of(request), read_object(await request.body()))


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=STREAMED,
    openapi_extra=takes(CompletionRequest),
)
async def completions(request: Request) -> Response:
    """Continue each prompt, or score it."""
    return await answer_completion(state_of(request), read_object(await request.body()))


@router.post("/v1/embeddings", response_model=Embeddings, openapi_extra=takes(EmbeddingRequest))
async def embeddings(request: Request) -> Response:
    """A vector of each input, of length 1."""
    return await answer_embeddings(state_of(request), read_object(await request.body()))


@router.post("/tokenize", openapi_extra=takes(TokenizeText, TokenizeChat))
async def tokenize(request: Request) -> Tokenized:
    """Token ids of a text or a conversation."""
    return await answer_tokenize(state_of(request), read_object(await request.body()))


@router.post("/detokenize", openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request) -> Detokenized:
    """Text of token ids."""
    return await answer_detokenize(state_of(request), read_object(await request.body()))
