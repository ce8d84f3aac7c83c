"""Clients run in the loop that takes least, and what they do comes out of it as from asyncio's own."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from octavo.bench import client_loop
from octavo.bench.client_loop import run_clients
from octavo.bench.load_connection import Address, LoadConnection
from octavo.errors import EngineFault


async def ask():
    """What a server that says little is asked, by a connection, and in which loop."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'data: {"choices":[{"text":"yes","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        await reader.read()  # until the client has closed
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = LoadConnection(Address.of(f"http://127.0.0.1:{port}"), {}, 10)
    exchange = await connection.send("/v1/completions", b"{}")
    connection.close()
    await gone.wait()
    server.close()
    await server.wait_closed()
    return exchange, type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.parametrize("found", [True, False], ids=["with uvloop", "without"])
def test_a_connection_is_answered_in_either_loop(monkeypatch, found):
    if found and find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    if not found:
        monkeypatch.setattr(client_loop, "find_spec", lambda name: None)
    exchange, loop = run_clients(ask())
    assert exchange.error is None
    assert exchange.answer.finish_reason == "stop" and len(exchange.answer.arrivals) == 1
    assert loop == ("uvloop" if found else "asyncio")


def test_what_clients_raise_is_raised():
    async def fail():
        raise EngineFault("the endpoint died")

    with pytest.raises(EngineFault, match="the endpoint died"):
        run_clients(fail())
