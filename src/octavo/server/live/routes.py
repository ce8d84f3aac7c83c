"""Routes that show the machine at work: as a stream of events, and once."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.live.feed import MachineFeed, Viewer
from octavo.server.live.picture import Painter
from octavo.server.state import state_of
from octavo.server.streaming import while_connected

router = APIRouter(include_in_schema=False)
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventsResponse(Response):
    """What a viewer of `feed` sees, until he leaves or the server ends. Raises an `HttpError` if too many watch."""

    def __init__(self, feed: MachineFeed) -> None:
        self.status_code = 200
        self.media_type = "text/event-stream"
        self.background = None
        self.init_headers(_HEADERS)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer = self._feed.join()
        try:
            await while_connected(self._send(viewer, send), receive)
        finally:
            self._feed.leave(viewer)

    async def _send(self, viewer: Viewer, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (picture := await viewer.next()) is not None:
            await send({"type": "http.response.body", "body": picture, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@router.get("/v1/internal/events")
async def events(request: Request) -> Response:
    """Server-sent events named `machine`, up to four a second: see docs/live-page.md."""
    return EventsResponse(request.app.state.feed)


@router.get("/v1/internal/machine")
async def machine(request: Request) -> dict[str, Any]:
    """One of these pictures, with no rates in it."""
    state = state_of(request)
    state.ready_model()
    return Painter(state).draw(await state.engine.inspect())
