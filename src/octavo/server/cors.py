"""What pages of other origins may do: Starlette's CORS middleware, with refusals in OpenAI's shape."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo.server.errors import error_response, invalid


class Cors(CORSMiddleware):
    """Answers preflights itself, without an API key: a browser sends none with them."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "HEAD", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """As the base class has it, but an error object in place of plain text."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        return error_response(invalid(f"{bytes(response.body).decode()}; the server allows others", code="cors"))
