"""Routes for those who watch over the server: is it alive, does it take requests, which version, which counters.

/health is 503 while the model loads and once the engine has failed or stopped: a server that will never answer again
should be started anew. It stays 200 while draining, when /ready is 503 already: no new requests, but let it finish.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

import octavo
from octavo.engine.serving import EngineState
from octavo.server.errors import HttpError
from octavo.server.sent_response import note_outcome
from octavo.server.state import state_of

router = APIRouter()


class Health(BaseModel):
    """`reason` is one line, empty when all is well."""

    status: EngineState
    reason: str


class Version(BaseModel):
    """What runs here."""

    name: str = "octavo"
    version: str = octavo.__version__


# What metrics and log call a 503: the word for any other request that is sent away then, not that for a full queue.
_OUTCOMES: dict[EngineState, str] = {
    "loading": "not_ready",
    "draining": "shutting_down",
    "stopped": "shutting_down",
    "failed": "engine_died",
}
_UNAVAILABLE: dict[int | str, dict[str, object]] = {503: {"model": Health, "description": "Not now."}}


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=_UNAVAILABLE)
async def health(request: Request, response: Response) -> Health:
    """Whether the server is worth keeping."""
    return _health(request, response, ("ready", "draining"))


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses=_UNAVAILABLE)
async def ready(request: Request, response: Response) -> Health:
    """Whether the server takes requests."""
    return _health(request, response, ("ready",))


@router.get("/version")
async def version() -> Version:
    """The version of Octavo."""
    return Version()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}, "description": "Counters."}},
)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus. 404 if the server was started without."""
    state = state_of(request)
    if not state.settings.metrics:
        raise HttpError(404, "this server was started with --no-metrics", code="not_found")
    page, content_type = state.metrics.page(request.headers.get("accept", ""))
    return Response(page, media_type=content_type)


def _health(request: Request, response: Response, good: tuple[EngineState, ...]) -> Health:
    status = state_of(request).engine.status
    response.headers["cache-control"] = "no-store"
    if status.state not in good:
        response.status_code = 503
        note_outcome(request.scope, _OUTCOMES[status.state])
    return Health(status=status.state, reason=status.reason)
