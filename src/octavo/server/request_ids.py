"""Gives every request an id: the client's own where it is fit for a log, else a fresh one; sends it back."""

from __future__ import annotations

import re
from contextvars import ContextVar
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

# Of the request that the current task serves; empty outside of one. Log lines carry it.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")


class RequestIds:
    """ASGI middleware. Handlers find the id as `request.state.request_id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(scope) or f"req-{uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        # Not reset at the end: a server runs each request in a task of its own, and an exception that leaves this task
        # is logged after it has left this frame.
        current_request_id.set(request_id)
        header = (HEADER, request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_with_id)


def _given(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == HEADER]
    if len(values) == 1 and _FIT.fullmatch(values[0]):
        return bytes(values[0]).decode()
    return None
