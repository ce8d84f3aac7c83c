"""What /v1/responses refuses, and by which name; and the bounds of what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from api_calls import app_over, post
from asgi_calls import get
from fake_engine import FakeEngine
from tool_server import WEATHER, engine_over

from octavo.server.errors import HttpError
from octavo.server.responses.store import ResponseStore, StoredResponse

TOOL: dict[str, Any] = {"type": "function", **WEATHER["function"]}
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [IMAGE]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": "word " * 200}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"messages": []}, "messages"),
        ({"surprise": 1}, "surprise"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": [TOOL]}, "tools"),  # the template knows none
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    answer = post("/v1/responses", {"input": "hi", **fields})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param and param.split("[")[0].split(".")[0] in answer.error["message"]


def test_more_calls_or_messages_than_a_chat_may_have_are_refused() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answer = post("/v1/responses", {"input": [call] * 129})
    assert answer.error["param"] == "input[0].tool_calls" and answer.status == 400
    turns = [{"role": "user", "content": ""}] * 4096
    answer = post("/v1/responses", {"input": turns})
    assert answer.error["param"] == "input" and "4096 messages" in answer.error["message"]


def test_tools_are_named_where_they_stand_in_this_api() -> None:
    answer = post("/v1/responses", {"input": "hi", "tools": [TOOL, TOOL]}, engine_over("x"))
    assert answer.error["param"] == "tools[1].name" and answer.error["message"].startswith("tools[1].name ")
    body = {"input": "hi", "tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}
    assert post("/v1/responses", body, engine_over("x")).error["param"] == "tool_choice"


def test_values_that_ask_for_nothing_are_accepted() -> None:
    fields: dict[str, Any] = {"background": False, "include": [], "truncation": "disabled", "top_logprobs": 0}
    fields |= {"service_tier": "auto", "reasoning": {"effort": None}, "text": {"verbosity": "medium"}, "prompt": None}
    fields |= {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "instructions": None, "tools": []}
    assert post("/v1/responses", {"input": "hi", **fields}, FakeEngine()).status == 200


def test_a_named_or_required_tool_is_enforced() -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        engine = engine_over("x")
        body = {"input": "hi", "tools": [TOOL], "tool_choice": choice}
        assert post("/v1/responses", body, engine).status == 200
        assert engine.requests[-1].params.grammar is not None


def test_a_kept_response_is_told_whole_only() -> None:
    app = app_over(FakeEngine())
    app.state.octavo.responses.keep("resp_1", StoredResponse(b"{}", b"[]"))
    assert get(app, "/v1/responses/resp_1").json() == {}
    assert get(app, "/v1/responses/resp_1?stream=true").error["param"] == "stream"


def stored(num_bytes: int) -> StoredResponse:
    return StoredResponse(b"x" * num_bytes, b"")


def test_the_responses_used_last_are_kept_up_to_a_number() -> None:
    store = ResponseStore(max_responses=2, max_bytes=100)
    for name in "ab":
        store.keep(name, stored(1))
    assert store.find("a") is not None  # and is used last by that
    store.keep("c", stored(1))
    assert store.find("b") is None and store.find("a") is not None and len(store) == 2 and store.num_bytes == 2


def test_responses_are_kept_up_to_a_size() -> None:
    store = ResponseStore(max_responses=10, max_bytes=10)
    store.keep("a", stored(4))
    store.keep("b", stored(6))
    assert len(store) == 2
    store.keep("c", stored(5))
    assert store.find("a") is None and store.find("b") is None and store.num_bytes == 5
    store.keep("d", stored(11))  # would push everything out, and not fit still
    assert store.find("d") is None and store.find("c") is not None
    store.forget("c")
    assert store.num_bytes == 0
    with pytest.raises(HttpError, match="no response 'c'"):
        store.forget("c")
