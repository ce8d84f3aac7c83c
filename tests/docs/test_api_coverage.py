"""The table of the APIs says of every field what the server does with it, of the clients' fields too."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from octavo.server.errors import HttpError
from octavo.server.protocol.fields import RequestModel
from octavo.server.protocol.parsing import parse
from scripts.reference.coverage import (
    ABSENT,
    ENDPOINTS,
    HONOURED,
    REFUSED,
    SOME_VALUES,
    WITHOUT_EFFECT,
    Endpoint,
    routes,
)

CLIENTS: dict[str, Any] = {
    "POST /v1/chat/completions": chat_create_params.CompletionCreateParamsStreaming,
    "POST /v1/completions": completion_create_params.CompletionCreateParamsStreaming,
    "POST /v1/embeddings": embedding_create_params.EmbeddingCreateParams,
    "POST /v1/responses": response_create_params.ResponseCreateParamsStreaming,
    "POST /v1/messages": message_create_params.MessageCreateParamsStreaming,
    "POST /v1/messages/count_tokens": message_count_tokens_params.MessageCountTokensParams,
}
NEEDED: dict[str, dict[str, Any]] = {
    "POST /tokenize, of a text": {"prompt": "x"},
    "POST /tokenize, of a conversation": {"messages": [{"role": "user", "content": "x"}]},
}
# Of Anthropic's API, and no more of the client's parameters.
OLDER = {"temperature", "top_k", "top_p", "context_management", "mcp_servers", "output_format", "container"} | {
    "diagnostics",
    "inference_geo",
}


def named(endpoint: Endpoint) -> str:
    return endpoint.route.replace("POST ", "")


def refusal_of(endpoint: Endpoint, name: str, value: object) -> HttpError | None:
    try:
        parse(endpoint.model, {**NEEDED.get(endpoint.route, {}), name: value}, endpoint.unsupported)
    except HttpError as error:
        return error if error.param == name else None  # that another field is missing says nothing of this one
    return None


def request_models(model: type[RequestModel] = RequestModel) -> set[type[RequestModel]]:
    return {model}.union(*map(request_models, model.__subclasses__()))


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=named)
def test_every_field_of_the_request_has_a_row(endpoint: Endpoint) -> None:
    rows = [row[0] for row in endpoint.rows()]
    assert set(endpoint.model.model_fields) | set(endpoint.unsupported) <= set(rows)
    assert len(rows) == len(set(rows))


def test_every_request_that_a_route_takes_has_a_table() -> None:
    wanted = {each for each in request_models() if each.__name__.endswith("Request") or "Tokenize" in each.__name__}
    assert {endpoint.model for endpoint in ENDPOINTS} == wanted


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.route in CLIENTS], ids=named)
def test_every_field_of_the_official_client_is_honoured_harmless_or_refused_with_a_remedy(endpoint: Endpoint) -> None:
    rows = {name: (status, remark) for name, _, status, remark in endpoint.rows()}
    for name in CLIENTS[endpoint.route].__annotations__:
        assert name in rows, f"a new field of the client's, {name}: declare it, or add it to what is not supported"
        status, remark = rows[name]
        if status in (HONOURED, WITHOUT_EFFECT):
            continue
        assert status in (SOME_VALUES, REFUSED) and remark, name
        if status == REFUSED:
            error = refusal_of(endpoint, name, {"some": "value"})
            assert error is not None and error.status == 400, name
            assert str(error).startswith(f"{name} is not supported: "), error


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.route in CLIENTS], ids=named)
def test_every_field_of_the_official_client_has_a_row_and_our_own_are_marked(endpoint: Endpoint) -> None:
    theirs = set(CLIENTS[endpoint.route].__annotations__)
    ours = {row[0] for row in endpoint.rows()}
    assert endpoint.own.isdisjoint(theirs)
    assert ours - theirs - OLDER <= endpoint.own


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=named)
def test_what_the_table_calls_refused_is_refused_by_its_name(endpoint: Endpoint) -> None:
    for name, _, status, _ in endpoint.rows():
        if status == REFUSED:
            assert refusal_of(endpoint, name, "some value") is not None, name
            assert refusal_of(endpoint, name, None) is None, name


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=named)
def test_what_the_table_calls_unsupported_but_harmless_is_taken(endpoint: Endpoint) -> None:
    harmless: dict[str, Any] = {"store": False, "service_tier": "auto", "truncation": "disabled", "best_of": 1}
    harmless |= {"use_beam_search": False, "min_tokens": 0}
    for name, values, _, remark in endpoint.rows():
        if name in harmless and name in endpoint.unsupported:
            assert str(harmless[name]).lower() in values and remark
            assert refusal_of(endpoint, name, harmless[name]) is None


def test_routes_that_are_said_to_be_absent_are() -> None:
    present = {row[0].strip("`").split(" ")[1].replace("{response_id}", "{id}") for row in routes()}
    assert "/v1/chat/completions" in present
    assert present.isdisjoint(path for paths in ABSENT.values() for path in paths)
