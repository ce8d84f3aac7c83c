"""Counts and logs each request once it has been answered: one line with its id, never a query, header or body."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.paths import route_path

CLIENT_GONE = 499  # shown for a request whose client left before its answer was complete
_PROBES = ("/health", "/ready", "/metrics")  # asked every few seconds by machines
_log = logging.getLogger("octavo.access")

# The route's template, the outcome (see `outcome_of`), seconds.
OnAnswered = Callable[[str, str, float], None]


class AccessLog:
    """ASGI middleware. A handler whose stream fails after its 200 says so with `request.state.outcome`."""

    def __init__(self, app: ASGIApp, on_answered: OnAnswered) -> None:
        self._app = app
        self._on_answered = on_answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        status, complete = 0, False

        async def watched(message: Message) -> None:
            nonlocal status, complete
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                complete = True

        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = perf_counter() - begun
            shown = status if complete else CLIENT_GONE
            outcome = scope["state"].get("outcome") or outcome_of(shown)
            endpoint = endpoint_of(scope)
            self._on_answered(endpoint, outcome, seconds)
            level = logging.DEBUG if endpoint in _PROBES else logging.INFO
            if _log.isEnabledFor(level):
                client = scope.get("client")
                values = {
                    "method": scope["method"],
                    "path": route_path(scope),
                    "status": shown,
                    "outcome": outcome,
                    "ms": round(seconds * 1000, 1),
                    "client": client[0] if client else "-",
                }
                _log.log(level, "%(method)s %(path).200s %(status)d %(outcome)s %(ms).1f ms from %(client)s", values)


def endpoint_of(scope: Scope) -> str:
    """The template of the route that served it, so that a metric has as many series as there are routes."""
    route = scope.get("route")
    return "other" if route is None else str(route.path)


def outcome_of(status: int) -> str:
    """What became of a request: ok, client_error, overloaded, server_error or disconnected."""
    if status == CLIENT_GONE:
        return "disconnected"
    if status in (429, 503):
        return "overloaded"
    if status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"
