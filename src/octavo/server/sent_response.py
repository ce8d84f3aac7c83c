"""What middleware learns of a response as it is sent: its status, its outcome, and which route it came from."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from octavo.server.errors import outcome_of_status

CLIENT_GONE = 499  # shown for a request whose client left before its answer was complete


class SentResponse:
    """Sends an ASGI response on to `send`, and looks at it. `complete` once its last byte was taken."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._status = 0
        self.complete = False

    async def __call__(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif not message.get("more_body", False):
            self.complete = True

    @property
    def status(self) -> int:
        return self._status if self.complete else CLIENT_GONE

    @property
    def outcome(self) -> str:
        """What became of the request: what its handler says (`note_outcome`), else ok, client_error, overloaded,
        server_error or disconnected.
        """
        said: str | None = self._scope["state"].get("outcome")
        if said:
            return said
        if self.status == CLIENT_GONE:
            return "disconnected"
        return outcome_of_status(self.status)

    @property
    def endpoint(self) -> str:
        """The template of the route that served it, so that a metric has as many series as there are routes."""
        route = self._scope.get("route")
        return "other" if route is None else str(route.path)


def note_outcome(scope: Scope, outcome: str) -> None:
    """Say what became of a request where its status does not, as of a stream that an error ended after its 200."""
    scope.setdefault("state", {})["outcome"] = outcome
