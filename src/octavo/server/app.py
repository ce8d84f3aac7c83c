"""Puts the application together: routes, middlewares in their order, and what becomes of exceptions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response

import octavo
from octavo.engine.serving import ServingEngine
from octavo.errors import OctavoError
from octavo.server import api, cache_routes, health, models_route, profile_routes
from octavo.server.access_log import AccessLog
from octavo.server.auth import Authentication, KeyRing
from octavo.server.cors import Cors
from octavo.server.errors import HttpError, error_response, http_error, invalid, outcome_of
from octavo.server.live import page
from octavo.server.live import routes as live_routes
from octavo.server.live.feed import MachineFeed
from octavo.server.live.picture import Painter
from octavo.server.messages import routes as messages_routes
from octavo.server.messages.errors import MessageErrors
from octavo.server.openapi import ERROR_RESPONSES, Described
from octavo.server.paths import RootPath, route_path
from octavo.server.request_body import RequestBody
from octavo.server.request_ids import RequestIds
from octavo.server.responses import routes as responses_routes
from octavo.server.sent_response import note_outcome
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState
from octavo.server.tracing.call import CallTrace
from octavo.server.tracing.middleware import Tracing

_log = logging.getLogger("octavo.server")


def create_app(
    engine: ServingEngine, settings: ServerSettings, write_trace: Callable[[CallTrace], None] | None = None
) -> FastAPI:
    """The ASGI application over `engine`, which may still be loading. It starts and stops nothing.

    `write_trace` is given every call that has ended, if calls are to be traced.
    """
    state = ServerState(engine, settings)
    state.metrics.show_engine(engine)
    app = Described(
        title="Octavo",
        version=octavo.__version__,
        description="An OpenAI-compatible server.",
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        responses=ERROR_RESPONSES,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=_middlewares(state, write_trace),
        exception_handlers={
            HTTPException: _on_http_exception,
            RequestValidationError: _on_validation_error,
            OctavoError: _on_own_error,
        },
    )
    app.state.octavo = state
    app.state.feed = MachineFeed(engine, Painter(state).event)
    for router in (
        api.router,
        responses_routes.router,
        messages_routes.router,
        models_route.router,
        cache_routes.router,
        live_routes.router,
        page.router,
        health.router,
        profile_routes.router,
    ):
        app.include_router(router)
    return app


def _middlewares(state: ServerState, write_trace: Callable[[CallTrace], None] | None) -> list[Middleware]:
    """Outermost first. Everything that answers by itself stands inside the ids and the log."""
    settings = state.settings
    cors = [Middleware(Cors, origins=settings.cors_origins)] if settings.cors_origins else []
    tracing = [Middleware(Tracing, write=write_trace)] if write_trace is not None else []
    return [
        Middleware(RootPath, prefix=settings.root_path),
        Middleware(RequestIds),
        Middleware(AccessLog, on_answered=state.metrics.count_request),
        *tracing,
        *cors,
        Middleware(MessageErrors),
        # The application has one of these too, but outside of the middlewares that give an answer its id.
        Middleware(ServerErrorMiddleware, handler=_on_fault),
        Middleware(Authentication, keys=KeyRing(settings.api_keys)),
        Middleware(RequestBody, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s),
    ]


async def _on_own_error(request: Request, error: Exception) -> Response:
    answer = http_error(cast(OctavoError, error))
    if answer.status == 500:
        _log.error("%s", answer)
    note_outcome(request.scope, outcome_of(answer))
    return error_response(answer)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router and the framework raise."""
    found = cast(HTTPException, error)
    path = route_path(request.scope)
    if found.status_code == 404:
        answer = HttpError(404, f"there is no {path:.200} here; /openapi.json lists what there is", code="not_found")
    elif found.status_code == 405:
        allowed = dict(found.headers or {}).get("Allow", "another method")
        answer = HttpError(
            405,
            f"{path:.200} does not take {request.method:.20}; use {allowed}",
            code="method_not_allowed",
            headers=found.headers,
        )
    else:
        answer = HttpError(found.status_code, str(found.detail), headers=found.headers)
    return error_response(answer)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """A path or query parameter; bodies are validated by their handlers."""
    first = cast(RequestValidationError, error).errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or None
    return error_response(invalid(f"{where or 'the request'}: {first['msg']}", param=where))


async def _on_fault(request: Request, error: Exception) -> Response:
    """What nobody expected. The exception goes on to the server, which logs it; the client learns the id to ask for."""
    message = f"an unexpected fault of the server; its log has more under {request.state.request_id}"
    return error_response(HttpError(500, message, type="server_error", code="internal_error"))
