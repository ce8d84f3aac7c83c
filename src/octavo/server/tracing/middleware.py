"""Follows every call that may run the model, and hands it over for its spans when it has ended, however that was."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.sent_response import SentResponse
from octavo.server.tracing.call import CallTrace, current_call

TRACE_HEADERS = (b"traceparent", b"tracestate")  # of W3C Trace Context


class Tracing:
    """ASGI middleware: POST requests are traced, the others ask for what is there."""

    def __init__(self, app: ASGIApp, write: Callable[[CallTrace], None]) -> None:
        self._app = app
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        call = CallTrace(scope["method"], scope["state"]["request_id"], _trace_headers(scope), perf_counter())
        current_call.set(call)  # not reset: a server runs each request in a task of its own
        response = SentResponse(scope, send)
        try:
            await self._app(scope, receive, response)
        finally:
            call.end(perf_counter(), response.endpoint, response.status, response.outcome, complete=response.complete)
            self._write(call)


def _trace_headers(scope: Scope) -> dict[str, str]:
    """Two trace parents are none; the states of several headers are one list."""
    found: dict[str, str] = {}
    for name in TRACE_HEADERS:
        values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
        if values and (name == b"tracestate" or len(values) == 1):
            found[name.decode()] = ",".join(values)
    return found
