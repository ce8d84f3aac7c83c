"""Calls an ASGI application without a network, as a client that waits for the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from octavo.server.request_ids import HEADER


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    status: int
    request_id: str
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> LocalAnswer:
    """The answer to JSON posted to `path`. Cancelling it is what a client does that leaves."""
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    started: MutableMapping[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> MutableMapping[str, Any]:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()  # this client never leaves
        raise AssertionError("nobody sets the event")

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            pieces.append(message.get("body", b""))

    await app(_scope(path, len(body)), receive, send)
    headers = {name.lower(): value for name, value in started["headers"]}
    return LocalAnswer(started["status"], headers[HEADER].decode("ascii"), b"".join(pieces))


def _scope(path: str, num_bytes: int) -> MutableMapping[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(num_bytes).encode("ascii"))],
        "client": None,
        "server": None,
    }
