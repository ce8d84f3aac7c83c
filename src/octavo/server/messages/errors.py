"""Errors in Anthropic's shape, on the routes of its API and nowhere else; and the header that it keeps keys in."""

from __future__ import annotations

import json
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.errors import http_error
from octavo.server.paths import is_messages_path

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_object(status: int, message: str) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_event(error: OctavoError) -> bytes:
    """The last event of a stream that failed."""
    told = http_error(error)
    data = json.dumps(error_object(told.status, str(told)))
    return b"event: error\ndata: " + data.encode("ascii") + b"\n\n"


class MessageErrors:
    """ASGI middleware: on the routes of Anthropic's API every answer has a `request-id`, and errors have its shape,
    whoever within refused. The messages are the same ones.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_messages_path(scope):
            await self._app(scope, receive, send)
            return
        request_id: str = scope["state"]["request_id"]
        refusal: Message | None = None
        pieces: list[bytes] = []

        async def reshape(message: Message) -> None:
            nonlocal refusal
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["request-id"] = request_id
                if message["status"] >= 400:
                    refusal = message
                    return
            elif refusal is not None:
                pieces.append(message.get("body", b""))
                if message.get("more_body", False):
                    return
                told = json.loads(b"".join(pieces))["error"]["message"]
                body = json.dumps({**error_object(refusal["status"], told), "request_id": request_id}).encode("ascii")
                MutableHeaders(scope=refusal)["content-length"] = str(len(body))
                await send(refusal)
                await send({"type": "http.response.body", "body": body})
                return
            await send(message)

        await self._app(scope, receive, reshape)
