"""Calls an ASGI application directly, with any bytes in headers and any pieces of body, and keeps what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fake_engine import FakeEngine
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.settings import ServerSettings

JSON = ("content-type", "application/json")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, whose shape is checked."""
        found = self.json()
        assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"}
        assert self.headers["content-type"] == "application/json"
        assert isinstance(found["error"]["message"], str) and "\n" not in found["error"]["message"]
        return found["error"]


def fake_app(engine: FakeEngine | None = None, **settings: Any) -> FastAPI:
    return create_app(engine or FakeEngine(), ServerSettings(**settings))


def call(
    app: FastAPI,
    method: str,
    path: str,
    headers: Iterable[tuple[str | bytes, str | bytes]] = (),
    body: bytes | list[bytes] | None = None,
    *,
    complete: bool = True,
    expect_exception: type[Exception] | None = None,
) -> Answer:
    """One request. `body` bytes get a Content-Length, a list of pieces is chunked; None sends neither.

    An incomplete body ends with the client going away. `expect_exception` must leave the application after its answer.
    """
    sent = [(_raw(name), _raw(value)) for name, value in headers]
    if isinstance(body, bytes):
        sent.append((b"content-length", str(len(body)).encode()))
    elif body is not None:
        sent.append((b"transfer-encoding", b"chunked"))
    pieces = [body] if isinstance(body, bytes) else list(body or [b""])
    incoming: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1 or not complete}
        for i, piece in enumerate(pieces)
    ]
    outgoing: list[Any] = []
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }

    async def run() -> None:
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if incoming:
                return incoming.pop(0)
            if complete:
                await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            outgoing.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                ended.set()

        if expect_exception is None:
            await app(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        except expect_exception:
            return
        raise AssertionError(f"no {expect_exception.__name__} left the application")

    asyncio.run(run())
    if not outgoing:
        return Answer(0, {}, b"")
    start, *rest = outgoing
    found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(each.get("body", b"") for each in rest))


def get(app: FastAPI, path: str, *headers: tuple[str | bytes, str | bytes]) -> Answer:
    return call(app, "GET", path, headers)


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
