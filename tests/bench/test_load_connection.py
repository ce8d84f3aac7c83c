"""One client's connection: keep-alive, endings of every kind, hanging up."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from octavo.bench.load_cell import run_cell
from octavo.bench.load_connection import Address, Exchange, LoadConnection
from octavo.bench.load_mix import LoadRequest, Plan
from octavo.errors import InvalidRequest
from tests.bench.stub_endpoint import serving_stub

BODY = json.dumps({"prompt": "a b c", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}})
PATH = "/v1/completions"


def send(url: str, times: int = 1, cancel_after: int | None = None, timeout_s: float = 20) -> list[Exchange]:
    async def run() -> list[Exchange]:
        connection = LoadConnection(Address.of(url), {}, timeout_s)
        try:
            return [await connection.send(PATH, BODY.encode(), cancel_after) for _ in range(times)]
        finally:
            connection.close()

    return asyncio.run(run())


@contextmanager
def canned(*answers: bytes) -> Iterator[tuple[str, list[int]]]:
    """A socket that gives one connection after the other its answer and closes it; `accepted` counts them."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[int] = []

    def serve() -> None:
        for answer in answers:
            with listener.accept()[0] as connection:
                accepted.append(1)
                while not connection.recv(1 << 16).endswith(BODY.encode()):
                    pass
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", accepted
        thread.join(5)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://host/api/v1", "https://host:443/api"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_a_url_is_taken_with_and_without_v1(url, expected):
    assert str(Address.of(url)) == expected


NO_URLS = (
    "",
    "ftp://host",
    "http://",
    "http://h:port",
    "http://h/?a=1",
    "http://h:99999",
    "http://h/ü",
    "http://h/a b",
)


@pytest.mark.parametrize("url", [*NO_URLS, "http://user:key@h"])
def test_a_url_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(InvalidRequest, match=r"the url is .*http://localhost:8000"):
        Address.of(url)


def test_a_whole_answer_has_an_arrival_per_chunk_and_its_usage():
    with serving_stub() as stub:
        (found,) = send(stub.url)
    assert found.error is None and not found.cancelled
    assert found.status == 200
    assert len(found.answer.arrivals) == 4
    assert (found.answer.prompt_tokens, found.answer.completion_tokens) == (3, 4)
    assert found.started <= found.answer.arrivals[0] <= found.answer.arrivals[-1] <= found.ended


def test_one_connection_serves_request_after_request():
    with serving_stub() as stub:
        found = send(stub.url, times=3)
        assert [each.error for each in found] == [None] * 3
        assert len(stub._sockets) == 1


def test_a_connection_made_ahead_is_the_one_that_is_used_and_a_failure_is_told_by_the_request():
    async def run(url: str) -> Exchange:
        connection = LoadConnection(Address.of(url), {}, 20)
        await connection.prepare()
        found = await connection.send(PATH, BODY.encode())
        connection.close()
        return found

    with serving_stub() as stub:
        assert asyncio.run(run(stub.url)).error is None
        assert len(stub._sockets) == 1
    assert (asyncio.run(run(stub.url)).error or "").startswith("no connection: ")


def test_a_client_that_hangs_up_keeps_what_it_got_and_the_next_request_connects_anew():
    with serving_stub() as stub:
        found = send(stub.url, times=2, cancel_after=2)
        assert [each.cancelled for each in found] == [True, True]
        assert [len(each.answer.arrivals) for each in found] == [2, 2]
        assert [each.error for each in found] == [None, None]
        assert len(stub._sockets) == 2


def test_hanging_up_after_more_chunks_than_there_are_is_a_whole_answer():
    with serving_stub() as stub:
        (found,) = send(stub.url, cancel_after=40)
    assert not found.cancelled and found.error is None


def test_a_refusal_is_its_status_and_message_and_the_connection_goes_on():
    with serving_stub(fails={0: (429, "queue is full")}) as stub:
        first, second = send(stub.url, times=2)
    assert (first.error, first.unreachable) == ("HTTP 429: queue is full", False)
    assert second.error is None


def test_a_stream_that_ends_without_a_finish_reason_is_no_answer():
    with serving_stub(stops_midway=True) as stub:
        (found,) = send(stub.url)
    assert found.error == "the stream ended without a finish reason"


def test_an_endpoint_that_dies_in_mid_stream_is_unreachable():
    with serving_stub(dies_at=0) as stub:
        first, second = send(stub.url, times=2)
    assert first.error is not None and first.error.startswith("the connection closed before the answer ended")
    assert first.unreachable and second.unreachable
    assert (second.error or "").startswith("no connection: ")


def test_an_answer_without_a_length_ends_with_its_connection():
    answer = b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"choices":[{"text":"a"}]}\n\n'
    with canned(answer + b"data: [DONE]\n\n", answer) as (url, _):
        whole, cut = send(url, times=2)
    assert whole.error is None and len(whole.answer.arrivals) == 1
    assert cut.error == "the connection closed before the answer ended"


@pytest.mark.parametrize(
    ("answer", "fragment"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}", "no event stream"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 11\r\n\r\n<b>down</b>", "HTTP 502: <b>down</b>"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", "HTTP 503: no reason given"),
    ],
    ids=["no HTTP", "no stream", "a proxy's page", "empty"],
)
def test_what_is_no_event_stream_is_told(answer, fragment):
    with canned(answer) as (url, _):
        (found,) = send(url)
    assert fragment in (found.error or "")


def test_an_endpoint_that_says_nothing_is_given_up():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        (found,) = send(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.05)
    assert found.error == "no whole answer within 0.05 s"


def test_clients_share_the_requests_of_a_cell_and_each_has_one_connection():
    requests = [LoadRequest(Plan(3, 4), PATH, BODY.encode()) for _ in range(7)]
    answered: list[int] = []
    with serving_stub() as stub:
        address = Address.of(stub.url)
        run = asyncio.run(
            run_cell(lambda: LoadConnection(address, {}, 20), requests, 3, lambda: answered.append(len(answered)))
        )
        assert len(stub._sockets) == 3
    assert [each.result for each in run.outcomes] == ["completed"] * 7
    assert len(answered) == 7
    assert run.wall_s >= max(each.ended_s for each in run.outcomes)


def test_the_client_takes_every_chunk_of_an_endpoint_that_never_waits():
    """Prints the client's ceiling (`-s` shows it); the stub's threads share this process, so it is a lower bound."""
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "stream": True}).encode()
    requests = [LoadRequest(Plan(1, 2000), PATH, body) for _ in range(16)]
    with serving_stub() as stub:
        address = Address.of(stub.url)
        run = asyncio.run(run_cell(lambda: LoadConnection(address, {}, 120), requests, 8))
    chunks = sum(len(each.arrivals_s) for each in run.outcomes)
    assert chunks == 16 * 2000
    print(f"{chunks / run.wall_s:,.0f} chunks/s; {run.client_cpu_s / chunks * 1e6:.1f} µs of this process each")
