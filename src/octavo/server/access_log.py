"""Counts and logs each request once it has been answered: one line with its id, never a query, header or body."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.paths import route_path
from octavo.server.sent_response import SentResponse

_PROBES = ("/health", "/ready", "/metrics")  # asked every few seconds by machines
_log = logging.getLogger("octavo.access")

# The route's template, the outcome (see `SentResponse`), seconds.
OnAnswered = Callable[[str, str, float], None]


class AccessLog:
    """ASGI middleware. A handler whose stream fails after its 200 says so with `note_outcome`."""

    def __init__(self, app: ASGIApp, on_answered: OnAnswered) -> None:
        self._app = app
        self._on_answered = on_answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        response = SentResponse(scope, send)
        try:
            await self._app(scope, receive, response)
        finally:
            seconds = perf_counter() - begun
            endpoint, outcome = response.endpoint, response.outcome
            self._on_answered(endpoint, outcome, seconds)
            level = logging.DEBUG if endpoint in _PROBES else logging.INFO
            if _log.isEnabledFor(level):
                client = scope.get("client")
                values = {
                    "method": scope["method"],
                    "path": route_path(scope),
                    "status": response.status,
                    "outcome": outcome,
                    "ms": round(seconds * 1000, 1),
                    "client": client[0] if client else "-",
                }
                _log.log(level, "%(method)s %(path).200s %(status)d %(outcome)s %(ms).1f ms from %(client)s", values)
