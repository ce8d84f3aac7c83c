"""What a connection does beside the application: bad HTTP, long headers, silence, readers that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from asgi_calls import fake_app
from fake_engine import FakeEngine
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from octavo.server.connection import Connection

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Hasty(Connection):
    """Bounds that a test can wait for."""

    max_connections = 3
    max_header_bytes = 10_000
    header_timeout_s = 0.15
    write_timeout_s = 0.2


def with_server(app: Any, client: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[None]]) -> None:
    """Run `client` with a function that connects to `app`."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(app, http=Hasty, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state = ServerState()
        server = await loop.create_server(lambda: Hasty(config, state, {}, loop), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            await client(lambda: asyncio.open_connection(host, port))
            for connection in list(state.connections):
                connection.transport.abort()
            await asyncio.sleep(0.02)

    asyncio.run(run())


async def answer_to(connect: Callable[[], Awaitable[Streams]], request: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    reader, writer = await connect()
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_in_openai_s_shape(request_bytes: bytes) -> None:
    async def client(connect: Any) -> None:
        head, _, body = (await answer_to(connect, request_bytes)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_http"

    with_server(fake_app(), client)


def test_endless_headers_are_431() -> None:
    async def client(connect: Any) -> None:
        for request in (b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4_000):
            assert (await answer_to(connect, request)).startswith(b"HTTP/1.1 431 ")

    with_server(fake_app(), client)


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_come_end_the_connection(sent: bytes) -> None:
    async def client(connect: Any) -> None:
        reader, writer = await connect()
        writer.write(sent)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 2)
        writer.close()

    with_server(fake_app(), client)


def test_a_connection_serves_one_request_after_another_and_the_second_s_headers_are_timed_too() -> None:
    async def client(connect: Any) -> None:
        reader, writer = await connect()
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.1)  # three of these are longer than headers may take
        writer.write(b"GET /hea")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 2)
        writer.close()

    with_server(fake_app(), client)


def test_the_rest_of_a_refused_body_is_dropped_and_the_next_request_is_served() -> None:
    async def client(connect: Any) -> None:
        reader, writer = await connect()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500000\r\n"
        )
        writer.write(head + b"\r\n" + b"x" * 250_000)
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 413 ")
        writer.write(b"x" * 250_000 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 ")
        writer.close()

    with_server(fake_app(max_body_bytes=100), client)


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade"])
def test_an_offer_to_upgrade_is_ignored_and_the_body_is_read(name: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """As Java's client makes one with every request."""

    async def client(connect: Any) -> None:
        reader, writer = await connect()
        body = b'{"prompt": "upgrade:", "max_tokens": 1}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n%s: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQ\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        for _ in range(2):
            writer.write(head % (name, len(body)) + body)
            answer = await asyncio.wait_for(reader.readuntil(b"}}"), 5)
            assert answer.startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"}")
        writer.close()

    with_server(fake_app(), client)
    assert not caplog.records


def test_one_connection_too_many_is_503_and_the_others_go_on() -> None:
    async def client(connect: Any) -> None:
        open_ones = [await connect() for _ in range(3)]
        reader, writer = await connect()
        refused = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert refused.startswith(b"HTTP/1.1 503 ") and b"too_many_connections" in refused
        reader, writer = open_ones[0]
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        for _, each in open_ones:
            each.close()

    with_server(fake_app(), client)


def test_a_client_that_does_not_read_is_cut_off_and_its_handler_is_told() -> None:  # report R059
    told = asyncio.Event()

    async def talkative(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2_000):  # far more than sockets buffer
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            if told.is_set():
                break
        assert (await receive())["type"] == "http.disconnect"
        told.set()

    async def client(connect: Any) -> None:
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(told.wait(), 10)
        writer.close()

    with_server(talkative, client)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:  # report R032
    engine = FakeEngine(endless=True, step_s=0.01)

    async def client(connect: Any) -> None:
        body = json.dumps({"prompt": "hi", "stream": stream}).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        _, writer = await connect()
        writer.write(head % len(body) + body)
        while not engine.num_running:
            await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(2):
            while engine.num_running:
                await asyncio.sleep(0.01)
        assert len(engine.aborted) == 1

    with_server(fake_app(engine), client)
