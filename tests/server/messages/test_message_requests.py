"""What /v1/messages refuses and how it says so; and that its errors and its header for keys are its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_calls import HI, app_over, post
from asgi_calls import JSON, call, fake_app, get
from fake_engine import FakeEngine
from tool_server import engine_over

PATH = "/v1/messages"
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}


def user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": user({"type": "image", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": user({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
        ({"messages": [*HI, {"role": "assistant", "content": "The answer is"}]}, "messages"),
        ({"messages": user({"type": "text", "text": "word " * 200})}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"speed": "fast"}, "speed"),
        ({"n": 2}, "n"),
        ({"surprise": 1}, "surprise"),
        ({"tools": [TOOL]}, "tools"),  # the template knows none
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(fields: dict[str, Any], name: str) -> None:
    answer = post(PATH, {"messages": HI, "max_tokens": 9, **fields})
    assert answer.status == 400, answer.body
    told = answer.json()
    assert set(told) == {"type", "error", "request_id"} and told["request_id"] == answer.headers["request-id"]
    assert set(told["error"]) == {"type", "message"} and told["error"]["type"] == "invalid_request_error"
    assert name in told["error"]["message"] and "\n" not in told["error"]["message"]


def test_more_calls_or_messages_than_a_chat_may_have_are_refused() -> None:
    calls = [{"type": "tool_use", "id": str(number), "name": "f", "input": {}} for number in range(129)]
    turns = [*HI, {"role": "assistant", "content": calls}, *HI]
    answer = post(PATH, {"messages": turns, "max_tokens": 9})
    assert answer.status == 400 and answer.json()["error"]["message"].startswith("messages[1].tool_calls has 129 items")
    results = [{"type": "tool_result", "tool_use_id": "x", "content": ""}] * 1000
    answer = post(PATH, {"messages": user(*results) * 5, "max_tokens": 9})
    assert answer.status == 400 and answer.json()["error"]["message"].startswith("messages has 5000 items")


def test_two_tools_of_one_name_are_named_where_they_stand() -> None:
    answer = post(PATH, {"messages": HI, "max_tokens": 9, "tools": [TOOL, TOOL]}, engine_over("x"))
    assert answer.json()["error"]["message"].startswith("tools[1].name ")


def test_what_asks_for_nothing_is_accepted() -> None:
    cached = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    fields: dict[str, Any] = {"metadata": {"user_id": "u"}, "service_tier": "auto", "system": [cached], "tools": []}
    fields |= {"messages": user(cached), "speed": "standard", "thinking": None, "mcp_servers": []}
    headers = [JSON, ("anthropic-version", "2023-06-01")]
    app = app_over(FakeEngine())
    body = json.dumps({"max_tokens": 9, **fields}).encode()
    answer = call(app, "POST", f"{PATH}?beta=true", headers, body)
    assert answer.status == 200 and answer.json()["type"] == "message"


def test_counting_takes_what_makes_the_prompt_and_no_more() -> None:
    counted = post(f"{PATH}/count_tokens", {"messages": HI, "system": "Be brief."})
    assert counted.status == 200 and counted.json()["input_tokens"] > 20
    refused = post(f"{PATH}/count_tokens", {"messages": HI, "max_tokens": 9})
    assert refused.status == 400 and "max_tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "headers", "body", "status", "kind"),
    [
        ("GET", [], None, 405, "invalid_request_error"),
        ("POST", [("content-type", "text/plain")], b"{}", 415, "invalid_request_error"),
        ("POST", [JSON], b"{", 400, "invalid_request_error"),
        ("POST", [JSON], b" " * 2000, 413, "request_too_large"),
    ],
)
def test_errors_of_every_layer_have_the_shape(method: str, headers: Any, body: Any, status: int, kind: str) -> None:
    answer = call(fake_app(max_body_bytes=1000), method, PATH, headers, body)
    assert answer.status == status
    told = answer.json()
    assert told["type"] == "error" and told["error"]["type"] == kind
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_a_loading_server_is_overloaded() -> None:
    answer = post(PATH, {"messages": HI, "max_tokens": 9}, FakeEngine(state="loading"))
    assert answer.status == 503 and answer.json()["error"]["type"] == "overloaded_error"
    assert int(answer.headers["retry-after"]) > 0


def test_other_routes_keep_their_errors_and_their_header_for_keys() -> None:
    app = fake_app(api_keys=("sk-test",))
    key = ("x-api-key", "sk-test")
    assert get(app, "/v1/models", key).error["code"] == "missing_api_key"
    assert get(app, "/v1/messagesque", ("authorization", "Bearer sk-test")).error["code"] == "not_found"
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}'
    assert call(app, "POST", PATH, [JSON, key], body).status == 200
    assert call(app, "POST", PATH, [JSON, ("authorization", "Bearer sk-test")], body).status == 200
    assert call(app, "POST", PATH, [JSON, key, key], body).status == 401
    assert call(app, "POST", PATH, [JSON, key, ("authorization", "Bearer wrong")], body).status == 401
    assert call(app, "POST", PATH, [JSON], body).json()["error"]["type"] == "authentication_error"
