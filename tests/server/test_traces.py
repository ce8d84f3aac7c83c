"""Traces: what a real server over a tiny model sends to a collector, and what becomes of it without one."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_calls import call
from fake_engine import FakeEngine
from server_process import ServerProcess, fake_server, octavo_serve
from span_collector import Collector, SpanFound, collecting

from octavo.engine.events import StepEvent
from octavo.request import Request
from octavo.server.app import create_app
from octavo.server.settings import ServerSettings
from octavo.server.tracing.call import CallTrace, current_call
from octavo.server.tracing.spans import span_writer

CHAT = "/v1/chat/completions"
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # milliseconds that spans wait for company
LONG_PROMPT = "The harbour was quiet when the first boats returned with the morning tide. " * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory named `tiny` with a model of 4,096 tokens of context."""
    from tests.tiny_models import save_hf

    path = tmp_path_factory.mktemp("traced") / "tiny"
    save_hf(path, "llama", num_hidden_layers=2, max_position_embeddings=4096)
    return path


@pytest.fixture(scope="module")
def traced(model: Path) -> Iterator[tuple[ServerProcess, Collector]]:
    with (
        collecting() as collector,
        octavo_serve("-m", model, "--parallel", 2, "--otlp-endpoint", collector.url, **SOON) as server,
    ):
        server.wait_until_ready()
        yield server, collector


def ask(server: ServerProcess, request_id: str, content: str = "hi", **fields: Any) -> httpx.Response:
    headers = {"x-request-id": request_id, **fields.pop("headers", {})}
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 5, "ignore_eos": True, **fields}
    with server.client(headers=headers) as client:
        return client.post(CHAT, json=body)


def assert_ordered(server: SpanFound, children: list[SpanFound]) -> None:
    """Each follows the one before, inside the call."""
    moments = [server.begin, *(moment for each in children for moment in (each.begin, each.end)), server.end]
    assert moments == sorted(moments)
    assert all(each.trace_id == server.trace_id for each in children)


def test_a_call_is_a_server_span_with_the_engine_s_times_inside(traced):
    server, collector = traced
    before = time.time_ns()
    assert ask(server, "plain", LONG_PROMPT).status_code == 200
    after = time.time_ns()
    span, children = collector.call("plain")
    assert (span.name, span.kind, span.parent_id, span.failed) == (f"POST {CHAT}", 2, "", False)
    assert [each.name for each in children] == ["queue", "prefill", "decode"]
    assert_ordered(span, children)
    queue, prefill, decode = children
    assert queue.end == prefill.begin and prefill.end == decode.begin
    assert prefill.end > prefill.begin and decode.end > decode.begin
    slack = 5_000_000  # between two readings of the wall clock
    assert before - slack <= span.begin and span.end <= after + slack
    assert collector.paths[0] == "/v1/traces"


def test_a_call_s_span_says_what_was_asked_and_answered_and_holds_no_text(traced):
    server, collector = traced
    cold, warm = (ask(server, name, "A careful engineer. " + LONG_PROMPT).json()["usage"] for name in ("cold", "warm"))
    span, children = collector.call("warm")
    expected = {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "octavo.outcome": "ok",
        "octavo.request_id": "warm",
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": warm["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": warm["prompt_tokens_details"]["cached_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert span.attributes == expected
    assert warm["prompt_tokens_details"]["cached_tokens"] > 0 == cold["prompt_tokens_details"]["cached_tokens"]
    assert children[1].attributes["octavo.prompt_tokens"] == warm["prompt_tokens"]
    assert children[2].attributes["octavo.output_tokens"] == 5
    assert span.resource["service.name"] == "octavo"
    assert "engineer" not in repr(collector.spans)


def test_a_caller_s_trace_is_continued_and_one_that_is_not_sampled_is_not_sent(traced):
    server, collector = traced
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    ask(server, "unsampled", headers={"traceparent": f"00-{trace_id}-{parent}-00"})
    ask(server, "broken", headers={"traceparent": "00-xyz"})
    ask(server, "continued", headers={"traceparent": f"00-{trace_id}-{parent}-01"})
    span, children = collector.call("continued")
    assert (span.trace_id, span.parent_id) == (trace_id, parent)
    assert len(children) == 3 and {each.trace_id for each in children} == {trace_id}
    assert collector.call("broken")[0].parent_id == ""
    assert "unsampled" not in {each.attributes.get("octavo.request_id") for each in collector.spans}


def test_each_choice_has_spans_of_its_own(traced):
    server, collector = traced
    ask(server, "two", n=2)
    span, children = collector.call("two")
    assert sorted(each.name for each in children) == ["decode", "decode", "prefill", "prefill", "queue", "queue"]
    assert len({each.attributes["octavo.choice_id"] for each in children}) == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 10


@pytest.mark.parametrize(
    ("path", "operation", "body", "phases"),
    [
        ("/v1/completions", "text_completion", {"prompt": "hi"}, ["queue", "prefill", "decode"]),
        ("/v1/completions", "text_completion", {"prompt": "hi", "stream": True}, ["queue", "prefill", "decode"]),
        ("/v1/messages", "chat", {"messages": [{"role": "user", "content": "hi"}]}, ["queue", "prefill", "decode"]),
        ("/v1/responses", "chat", {"input": "hi", "max_tokens": None}, ["queue", "prefill", "decode"]),
        ("/v1/embeddings", "embeddings", {"input": "hi", "max_tokens": None}, ["queue", "prefill"]),
    ],
    ids=["completion", "stream", "message", "response", "embedding"],
)
def test_every_way_to_run_the_model_is_traced(traced, path, operation, body, phases):
    server, collector = traced
    name = f"{path.rpartition('/')[2]}.{'stream' in body}"
    fields = {key: value for key, value in {"model": "tiny", "max_tokens": 5, **body}.items() if value is not None}
    with server.client(headers={"x-request-id": name}) as client:
        assert client.post(path, json=fields).status_code == 200
    span, children = collector.call(name)
    assert span.attributes["http.route"] == path and span.attributes["gen_ai.operation.name"] == operation
    assert [each.name for each in children] == phases
    assert_ordered(span, children)


def test_a_client_that_leaves_ends_its_spans(traced):
    server, collector = traced
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True, "max_tokens": 4000}
    with (
        server.client(headers={"x-request-id": "gone"}) as client,
        client.stream("POST", CHAT, json=body) as response,
    ):
        next(response.iter_lines())
    span, children = collector.call("gone")
    assert span.attributes["octavo.outcome"] == "disconnected"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert [each.name for each in children] == ["queue", "prefill", "decode"]
    assert_ordered(span, children)


def test_a_choice_that_ends_at_a_stop_string_is_no_abort(traced):
    server, collector = traced
    whole = ask(server, "whole", max_tokens=40, temperature=0).json()["choices"][0]["message"]["content"]
    assert len(whole) > 4
    answer = ask(server, "stopped", max_tokens=40, temperature=0, stop=[whole[3:5]]).json()["choices"][0]
    span, _ = collector.call("stopped")
    assert answer["finish_reason"] == "stop"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]


def test_a_refused_request_is_a_span_without_children(traced):
    server, collector = traced
    assert ask(server, "refused", max_tokens=-1).status_code == 400
    span, children = collector.call("refused")
    assert (span.attributes["http.response.status_code"], span.attributes["octavo.outcome"]) == (400, "client_error")
    assert children == [] and not span.failed
    with server.client(headers={"x-request-id": "nowhere"}) as client:
        client.post("/v1/nowhere", json={})
    assert collector.call("nowhere")[0].name == "POST other"


def test_a_request_that_expires_in_the_queue_was_only_queued(model):
    with (
        collecting() as collector,
        octavo_serve(
            "-m", model, "--parallel", 1, "--queue-timeout", 0.05, "--otlp-endpoint", collector.url, **SOON
        ) as server,
    ):
        server.wait_until_ready()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True, "max_tokens": 4000}
        with server.client() as client, client.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()  # kept: the response is closed when they go
            next(lines)
            assert ask(server, "late").status_code == 503
        span, children = collector.call("late")
    assert [each.name for each in children] == ["queue"]
    assert_ordered(span, children)
    assert span.failed and span.attributes["error.type"] == "queue_timeout"
    assert children[0].end - children[0].begin >= 50_000_000


def test_asking_what_is_there_makes_no_span(traced):
    server, collector = traced
    with server.client() as client:
        for path in ("/health", "/metrics", "/v1/models", "/v1/cache/stats"):
            assert client.get(path).status_code == 200
    ask(server, "after")
    collector.call("after")
    assert not any(each.name.startswith("GET") for each in collector.spans)


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("kind", ["absent", "refusing"])
def test_a_collector_that_does_not_take_spans_disturbs_nobody(kind, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting(status=503) as refusing:
        url = refusing.url if kind == "refusing" else f"http://127.0.0.1:{closed_port()}/v1/traces"
        with fake_server(traces_url=url) as server:
            server.wait_until_ready()
            for number in range(20):
                assert ask(server, str(number)).status_code == 200
            server.wait_for("warning opentelemetry|error   opentelemetry")
            begun = time.monotonic()
            server.process.terminate()
            assert server.ended() == 0
            assert time.monotonic() - begun < 10
            assert "Traceback" not in server.log
            assert all(line[:4].isdigit() for line in server.log.splitlines())  # every line has our form


def test_a_collector_that_says_nothing_holds_up_neither_requests_nor_the_end(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        with fake_server(traces_url=url) as server:
            server.wait_until_ready()
            begun = time.monotonic()
            for number in range(10):
                assert ask(server, str(number)).status_code == 200
            connection, _ = silent.accept()  # a batch is on its way
            with connection:
                server.process.terminate()
                assert server.ended() == 0
            assert time.monotonic() - begun < 9  # less than the exporter would wait


def test_spans_that_wait_are_sent_before_the_server_ends():
    with collecting() as collector, fake_server(traces_url=f"{collector.url}/v1/traces") as server:
        server.wait_until_ready()
        ask(server, "last")
        server.process.terminate()
        assert server.ended() == 0
        _, children = collector.call("last")
    assert [each.name for each in children] == ["queue", "prefill", "decode"]


def test_the_service_is_called_as_its_variable_says(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with collecting() as collector:
        with span_writer(f"{collector.url}/v1/traces") as writer:
            ended = CallTrace("POST", "named", {}, 1.0)
            ended.end(2.0, CHAT, 200, "ok", complete=True)
            writer.write(ended)
        span, children = collector.call("named")
    assert (span.resource["service.name"], children) == ("mine", [])
    assert span.end - span.begin == 1_000_000_000


def test_no_call_is_followed_where_nothing_is_traced():
    seen: list[CallTrace | None] = []

    class Noting(FakeEngine):
        async def run(self, requests: Sequence[Request]) -> AsyncGenerator[list[StepEvent]]:
            seen.append(current_call.get())
            async for events in super().run(requests):
                yield events

    body = b'{"prompt": "hi", "max_tokens": 2}'
    json_type = [(b"content-type", b"application/json")]
    for write in (None, lambda call: None):
        app = create_app(Noting(), ServerSettings(), write)
        assert call(app, "POST", "/v1/completions", json_type, body).status == 200
    assert seen[0] is None and isinstance(seen[1], CallTrace)
