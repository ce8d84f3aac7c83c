"""Bodies of requests: lengths, sizes, types, and clients that stop half way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_calls import JSON, call, fake_app

from octavo.server.request_body import RequestBody

PATH = "/echo"


def echo_app(**settings: Any) -> Any:
    """The application with a route that answers the body it got."""
    from starlette.requests import Request
    from starlette.responses import Response

    app = fake_app(**settings)

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    app.add_route(PATH, echo, methods=["POST"])
    return app


def test_a_body_arrives_whole_with_a_length_and_in_chunks() -> None:
    app = echo_app()
    assert call(app, "POST", PATH, [JSON], b'{"a": 1}').body == b'{"a": 1}'
    assert call(app, "POST", PATH, [JSON], [b'{"a"', b": 1", b"}"]).body == b'{"a": 1}'
    assert call(app, "POST", PATH, [JSON], b"").status == 200


def test_no_length_at_all_is_411() -> None:
    assert call(echo_app(), "POST", PATH, [JSON]).status == 411
    assert call(echo_app(), "POST", PATH, [JSON]).error["type"] == "invalid_request_error"


@pytest.mark.parametrize("length", ["-1", "abc", "1.5", "1e3", "", "0x10", "+5", "٣", "9" * 40])
def test_a_length_that_is_none_is_400(length: str) -> None:
    assert call(echo_app(), "POST", PATH, [JSON, ("content-length", length)]).status == 400


def test_two_lengths_that_differ_are_400() -> None:
    assert call(echo_app(), "POST", PATH, [JSON, ("content-length", "5")], b"123456").status == 400


def test_a_body_declared_too_large_is_413_before_any_of_it_is_read() -> None:
    app = echo_app(max_body_bytes=100)
    answer = call(app, "POST", PATH, [JSON, ("content-length", "101")], complete=False)
    assert answer.status == 413
    assert "101" in answer.error["message"] and "100" in answer.error["message"]
    assert call(app, "POST", PATH, [JSON], b"x" * 100).status == 200


def test_a_chunked_body_that_grows_too_large_is_cut_off() -> None:
    app = echo_app(max_body_bytes=100)
    assert call(app, "POST", PATH, [JSON], [b"x" * 60, b"x" * 41]).status == 413
    assert call(app, "POST", PATH, [JSON], [b"x" * 60, b"x" * 40]).status == 200


def test_no_more_than_the_limit_is_taken_from_an_endless_body() -> None:
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1000
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError("the application was called")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"transfer-encoding", b"chunked"), JSON_RAW]}
    asyncio.run(RequestBody(never, 10_000, 5.0)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert taken == 11_000


JSON_RAW = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    "value",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "",
        "json",
    ],
)
def test_a_body_that_is_not_declared_json_is_415(value: str) -> None:
    answer = call(echo_app(), "POST", PATH, [("content-type", value)], b"{}")
    assert answer.status == 415
    assert "JSON" in answer.error["message"] or "application/json" in answer.error["message"]


def test_a_body_without_a_type_or_with_an_encoding_is_415() -> None:
    assert call(echo_app(), "POST", PATH, [], b"{}").status == 415
    assert call(echo_app(), "POST", PATH, [JSON, ("content-encoding", "gzip")], b"{}").status == 415


@pytest.mark.parametrize("value", ["application/json", "Application/JSON", "application/json; charset=UTF-8"])
def test_json_may_be_spelt_in_any_case_and_name_its_charset(value: str) -> None:
    assert call(echo_app(), "POST", PATH, [("content-type", value)], b"{}").status == 200


def test_a_client_that_leaves_half_way_reaches_no_handler() -> None:
    answer = call(echo_app(), "POST", PATH, [JSON], [b'{"a"'], complete=False)
    assert answer.status == 0


def test_a_body_that_does_not_come_is_408() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError("it waited too long")

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError("the application was called")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"5"), JSON_RAW]}
    asyncio.run(RequestBody(never, 100, 0.02)(scope, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_the_cache_is_reset_without_a_body_or_a_type() -> None:
    app = fake_app()
    assert call(app, "POST", "/v1/cache/reset").json() == {"freed_blocks": 1}
    assert call(app, "POST", "/v1/cache/reset", [], b"").status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"42", b'{"prompt": ', b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b'"\\ud800"', b"NaN"],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_json_object_is_400(path: str, body: bytes) -> None:
    answer = call(fake_app(), "POST", path, [JSON], body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
