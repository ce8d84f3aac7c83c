"""Every error has OpenAI's shape, the status that fits, and tells nothing of the server's inside."""

from __future__ import annotations

import logging
from typing import Any, get_args

import pytest
from asgi_calls import JSON, call, fake_app, get
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from octavo.engine.events import Fault
from octavo.errors import (
    CapacityError,
    EngineFault,
    InvalidGrammar,
    InvalidRequest,
    LoadError,
    NotReady,
    OctavoError,
    QueueFull,
    ShuttingDown,
)
from octavo.server.errors import fault_error, http_error
from octavo.server.logs import TextLines


def raising_app(error: Exception, **settings: Any) -> Any:
    app = fake_app(**settings)

    async def raises(request: Request) -> Response:
        raise error

    app.add_route("/raises", raises)
    return app


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("bad n"), 400, None),
        (InvalidGrammar("unclosed group"), 400, "invalid_grammar"),
        (CapacityError("900 tokens; 512 fit"), 400, "context_length_exceeded"),
        (QueueFull("64 wait", retry_after_s=7), 429, "queue_full"),
        (NotReady("loading"), 503, "not_ready"),
        (ShuttingDown("draining"), 503, "shutting_down"),
        (EngineFault("it broke"), 500, "engine_fault"),
        (LoadError("no file"), 500, "engine_fault"),
    ],
)
def test_an_exception_of_ours_is_answered_with_its_status_and_message(
    error: OctavoError, status: int, code: str | None
) -> None:
    answer = get(raising_app(error), "/raises")
    assert answer.status == status
    assert answer.error["message"] == str(error)
    assert answer.error["code"] == code


def test_a_full_queue_and_an_engine_that_is_not_ready_say_when_to_come_again() -> None:
    assert get(raising_app(QueueFull("full", retry_after_s=7)), "/raises").headers["retry-after"] == "7"
    assert int(get(raising_app(NotReady("loading")), "/raises").headers["retry-after"]) > 0


def test_each_fault_of_the_engine_has_a_code_of_its_own() -> None:
    answers = {fault: fault_error(fault, "why") for fault in get_args(Fault)}
    assert len({answer.code for answer in answers.values()}) == len(answers)
    assert answers["queue_timeout"].status == 503
    assert answers["request_timeout"].status == 504
    assert answers["fault"].status == 500
    # The official client would otherwise send it again, to time out again.
    assert answers["request_timeout"].headers["x-should-retry"] == "false"


def test_an_answer_keeps_the_status_it_was_given() -> None:
    error = fault_error("shut_down", "why")
    assert http_error(error) is error


def test_an_unknown_path_is_404() -> None:
    answer = get(fake_app(), "/v2/nothing")
    assert answer.status == 404
    assert "/v2/nothing" in answer.error["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/completions"), ("PUT", "/v1/models"), ("POST", "/health")])
def test_a_method_that_a_path_does_not_take_is_405_and_names_those_it_does(method: str, path: str) -> None:
    answer = call(fake_app(), method, path, [], b"")
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert answer.headers["allow"]


def test_an_unexpected_exception_is_500_with_the_id_and_nothing_of_its_text(caplog: pytest.LogCaptureFixture) -> None:
    app = raising_app(KeyError("/secret/path"), cors_origins=("*",))
    headers = [("x-request-id", "my-id"), ("origin", "https://page.example")]
    answer = call(app, "GET", "/raises", headers, expect_exception=KeyError)
    assert answer.status == 500
    assert "my-id" in answer.error["message"] and "secret" not in answer.body.decode()
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["access-control-allow-origin"] == "*"


def test_a_fault_is_one_line_in_the_log_and_a_traceback_at_debug() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "Exception\n", (), None)
        record.exc_info = (KeyError, error, error.__traceback__)
    line = TextLines(debug=False).format(record)
    assert "\n" not in line and "KeyError: 'the cause'" in line
    assert "Traceback" in TextLines(debug=True).format(record)


@pytest.mark.parametrize("given", ["abc-123", "req_9.Z:x", "a" * 128])
def test_a_fit_request_id_comes_back(given: str) -> None:
    for path in ("/version", "/nowhere", "/health"):
        assert get(fake_app(), path, ("x-request-id", given)).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "new\nline", "sp ace", "ü", "<script>", b"\xff"])
def test_an_unfit_request_id_is_replaced(given: str | bytes) -> None:
    found = get(fake_app(), "/version", ("x-request-id", given)).headers["x-request-id"]
    assert found.startswith("req-") and len(found) < 64


def test_requests_without_an_id_get_different_ones() -> None:
    app = fake_app()
    assert len({get(app, "/version").headers["x-request-id"] for _ in range(20)}) == 20


def test_errors_carry_an_id_too() -> None:
    app = fake_app(api_keys=("k",), max_body_bytes=1)
    assert get(app, "/v1/models").headers["x-request-id"]
    key = ("authorization", "Bearer k")
    assert call(app, "POST", "/v1/completions", [JSON, key], b"{}").headers["x-request-id"]


def test_a_request_is_one_line_in_the_log_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="octavo.access")
    get(fake_app(), "/v1/models?secret=1")
    get(fake_app(), "/evil\nINFO forged")
    lines = [TextLines(debug=False).format(record) for record in caplog.records]
    assert len(lines) == 2
    assert "GET /v1/models 200" in lines[0] and "secret" not in lines[0]
    assert "404" in lines[1] and "\n" not in lines[1]


def test_probes_are_not_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="octavo.access")
    for path in ("/health", "/ready", "/metrics"):
        get(fake_app(), path)
    assert not caplog.records


def test_a_stream_that_breaks_off_is_not_counted_as_answered() -> None:
    app = fake_app()

    async def broken(request: Request) -> Response:
        async def pieces() -> Any:
            yield b"one"
            raise KeyError("broken")

        return StreamingResponse(pieces())

    app.add_route("/broken", broken)
    call(app, "GET", "/broken", expect_exception=KeyError)
    page = get(app, "/metrics").body.decode()
    assert 'octavo_requests_total{endpoint="other",outcome="disconnected"} 1.0' in page


def test_a_proxy_s_prefix_may_be_there_or_taken_off() -> None:
    app = fake_app(root_path="/llm", api_keys=("k",))
    assert [get(app, path).status for path in ("/health", "/llm/health", "/llm/v1/models")] == [200, 200, 401]
    key = ("authorization", "Bearer k")
    assert get(app, "/llm/v1/models", key).status == get(app, "/v1/models", key).status == 200


def test_the_description_names_every_route_and_no_422() -> None:
    document = get(fake_app(), "/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/health"} <= set(
        document["paths"]
    )
    for path in document["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
            assert "400" in operation["responses"]
