"""Takes in the body of a POST, whole and within bounds, before a handler runs. It does not look into it."""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import HttpError, error_response, invalid
from octavo.server.paths import route_path

# POSTs that need none, and may come without a length, as curl sends them.
BODILESS = ("/v1/cache/reset", "/start_profile", "/stop_profile")
_DIGITS = re.compile(rb"[0-9]{1,18}")


class RequestBody:
    """ASGI middleware: 400 for a length that is none, 408, 411, 413 and 415, as HTTP has them.

    A handler gets the body in one message, and after it whatever the connection has to tell. A client that goes away
    before its body is complete gets no answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            self._check_headers(scope)
            body = await self._read(receive)
        except HttpError as error:
            await error_response(error)(scope, receive, send)
            return
        if body is None:
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    def _check_headers(self, scope: Scope) -> None:
        lengths = _values(scope, b"content-length")
        chunked = bool(_values(scope, b"transfer-encoding"))
        if len(set(lengths)) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
            raise invalid("Content-Length must be one whole number of bytes, at least 0")
        if lengths and int(lengths[0]) > self._max_bytes:
            raise self._too_large(f"{int(lengths[0])} bytes")
        if not lengths and not chunked:
            if route_path(scope) in BODILESS:
                return
            raise HttpError(411, "the request has no Content-Length; send one, or use chunked transfer encoding")
        if chunked or int(lengths[0]):
            _check_type(scope)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None if the client went away. Never holds more than the limit and one piece of the network's."""
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > self._max_bytes:
                        raise self._too_large("longer")
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError:
            message_408 = f"the request's body did not arrive within {self._timeout_s:g} seconds; send it faster"
            raise HttpError(408, message_408, code="request_timeout", headers={"connection": "close"}) from None

    def _too_large(self, size: str) -> HttpError:
        message = f"the request's body is {size}; at most {self._max_bytes} bytes are taken, send less"
        # The connection stays open and drops what still comes, for a while: if closed now, it would be reset under a
        # client that is still sending, which then never reads this answer.
        return HttpError(413, message, code="body_too_large")


def _check_type(scope: Scope) -> None:
    encodings = [value for value in _values(scope, b"content-encoding") if value.lower() != b"identity"]
    if encodings:
        raise HttpError(415, f"Content-Encoding {_shown(encodings[0])} is not taken; send the body as it is")
    types = _values(scope, b"content-type")
    if len(types) != 1:
        raise HttpError(415, "the request needs one Content-Type; send application/json")
    media_type, *parameters = (part.strip().lower() for part in types[0].split(b";"))
    if media_type != b"application/json":
        raise HttpError(415, f"Content-Type {_shown(types[0])} is not taken; send application/json")
    charsets = [part.partition(b"=")[2].strip(b'" ') for part in parameters if part.startswith(b"charset")]
    if any(charset not in (b"utf-8", b"utf8", b"us-ascii") for charset in charsets):
        raise HttpError(415, f"Content-Type {_shown(types[0])} is not taken; JSON is UTF-8")


def _values(scope: Scope, wanted: bytes) -> list[bytes]:
    return [bytes(value).strip() for name, value in scope["headers"] if name == wanted]


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
