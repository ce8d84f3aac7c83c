"""One TCP connection: uvicorn's, with bounds on headers, on waiting for them, and on clients that do not read."""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.errors import error_body

# A megabyte of credentials is answered 401 like any wrong key, by the application; more is cut off here.
MAX_HEADER_BYTES = (1 << 20) + (1 << 18)
HEADER_TIMEOUT_S = 20.0  # to send a request's headers, from the first byte or from connecting
WRITE_TIMEOUT_S = 120.0  # for a client to take what lies ready for it, once buffers are full

_UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=:)", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """Cut off after `header_timeout_s` without complete headers, and after `write_timeout_s` of full buffers.

    The latter ends the handler's stream as a disconnect would. Of more than `max_connections` at once the last is
    answered 503. Subclasses set other bounds.
    """

    max_connections = 4096
    max_header_bytes = MAX_HEADER_BYTES
    header_timeout_s = HEADER_TIMEOUT_S
    write_timeout_s = WRITE_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._in_body = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(self.header_timeout_s, transport.abort)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections; close some, or try again later", "too_many_connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.transport.is_closing():
            return
        # Between requests what comes may also be the rest of a body whose request has been answered, and is dropped.
        if self.cycle is None or self.cycle.response_complete:
            if not self._in_body:
                if not self._header_bytes:
                    data = _without_upgrade(data)
                self._header_bytes += len(data)
            if self._header_timer is None:
                self._header_timer = self.loop.call_later(self.header_timeout_s, self.transport.abort)
        super().data_received(data)
        if self._header_bytes > self.max_header_bytes and not self.transport.is_closing():
            self._refuse(
                431, f"the request's headers are longer than {self.max_header_bytes} bytes", "headers_too_large"
            )

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._stop_header_timer()
        self._header_bytes = 0
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._in_body = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Called by the transport when its buffer is full."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by the transport when its buffer has emptied."""
        self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP: uvicorn's answer, in OpenAI's shape."""
        self._refuse(400, "the request is not valid HTTP/1.1", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer outside of the application, and close."""
        kind = "service_unavailable_error" if status == 503 else "invalid_request_error"
        body = json.dumps(error_body(message, type=kind, code=code)).encode()
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _without_upgrade(data: bytes) -> bytes:
    """The beginning of a request without an offer to speak something else than HTTP/1.1, which a server may ignore.

    Java's client makes one with every request (h2c); the parser would take the body for the other protocol.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"x-ignored-upgrade", head) + end + body
