"""One client's connection to the measured endpoint: HTTP/1.1 with keep-alive, one streamed answer at a time.

It costs an eighth of what httpx does per chunk (docs/benchmarks.md), so that the client does not take the CPU from a
server on the same machine. Proxies, redirects and compression are not for it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from octavo.bench.load_sse import Answer, EventSplitter, error_message
from octavo.errors import InvalidRequest

MAX_REFUSAL = 64 << 10  # bytes of an error body that are kept
_ENDED_EARLY = "the connection closed before the answer ended"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint lies: `base` is the path before `/v1`, empty or beginning with a slash."""

    scheme: str
    host: str
    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> Address:
        """From `http://host:port`, with or without `/v1` at its end. Raises `InvalidRequest`."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"the url is {url!r} ({error}); give one such as http://localhost:8000") from error
        extra = parts.query or parts.fragment or parts.username or " " in url
        if parts.scheme not in ("http", "https") or not parts.hostname or extra or not url.isascii():
            raise InvalidRequest(f"the url is {url!r}; give one such as http://localhost:8000 or https://host/v1")
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), base)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"


@dataclass(slots=True)
class Exchange:
    """How one request went; times by `time.perf_counter`, in seconds. `error` is None if it got its whole answer."""

    answer: Answer
    started: float
    ended: float = 0.0
    status: int | None = None
    cancelled: bool = False
    error: str | None = None
    unreachable: bool = False  # no connection, or one that was lost


class LoadConnection:
    """Reconnects when the endpoint has closed the connection between two requests. Not for concurrent use."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout_s: float) -> None:
        self._address, self._timeout = address, timeout_s
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        fields = {"host": address.authority, "content-type": "application/json", "accept": "text/event-stream"}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **headers}.items())
        self._wire: _Wire | None = None

    def head(self, path: str, length: int) -> bytes:
        """The request's first bytes, to be made before anything is timed."""
        line = f"POST {self._address.base}{path} HTTP/1.1\r\n"
        return f"{line}{self._headers}content-length: {length}\r\n\r\n".encode("latin-1")

    async def prepare(self) -> None:
        """Connect before the first request, which then pays nothing for it. If this fails, `send` will tell."""
        with suppress(OSError):
            async with asyncio.timeout(self._timeout):
                await self._connected()

    async def send(self, path: str, body: bytes, cancel_after: int | None = None) -> Exchange:
        """Post `body` and read the streamed answer; after `cancel_after` chunks with output, hang up."""
        payload = self.head(path, len(body)) + body
        exchange = Exchange(Answer(), time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout):
                wire = await self._connected()
                await wire.exchange(payload, exchange, cancel_after)
        except TimeoutError:
            exchange.error = f"no whole answer within {self._timeout:g} s"
        except OSError as error:
            exchange.error, exchange.unreachable = f"no connection: {error.strerror or error}", True
        exchange.ended = time.perf_counter()
        if exchange.error is not None or exchange.cancelled:
            self.close()
        return exchange

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _connected(self) -> _Wire:
        if self._wire is None or not self._wire.reusable:
            self.close()
            loop = asyncio.get_running_loop()
            _, self._wire = await loop.create_connection(_Wire, self._address.host, self._address.port, ssl=self._tls)
        return self._wire


class _Wire(asyncio.Protocol):
    """A transport and the parser of what comes out of it. `httptools` calls the `on_` methods."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._finished: asyncio.Future[None] | None = None
        self._open = True

    @property
    def reusable(self) -> bool:
        return self._open

    def close(self) -> None:
        self._open, self._exchange = False, None
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, payload: bytes, exchange: Exchange, cancel_after: int | None) -> None:
        assert self._transport is not None
        self._exchange, self._cancel_after = exchange, cancel_after
        self._splitter, self._refusal, self._streams, self._now = EventSplitter(), b"", False, 0.0
        self._finished = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        await self._finished

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, though of no such class

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._exchange is None:  # nothing was asked: the endpoint says good-bye
            self._open = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:  # a fault of ours, not of the endpoint
            raise
        except httptools.HttpParserError as error:
            self._finish(f"the endpoint does not speak HTTP/1.1: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        if self._exchange is None:
            return
        if self._exchange.answer.done:  # an answer without a length ends with its connection
            self._complete()
        else:
            self._exchange.unreachable = True
            self._finish(f"{_ENDED_EARLY} ({exc})" if exc else _ENDED_EARLY)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streams = value.lower().startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        assert self._exchange is not None
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status != 200 or not self._streams:
            self._refusal = (self._refusal + body)[:MAX_REFUSAL]
            return
        try:
            events = self._splitter.feed(body)
        except ValueError as error:
            self._finish(str(error))
            return
        answer = exchange.answer
        for event in events:
            answer.take(event, self._now)
            if self._cancel_after is not None and len(answer.arrivals) >= self._cancel_after and not answer.done:
                exchange.cancelled = True
                self._finish(None)
                return

    def on_message_complete(self) -> None:
        if self._exchange is not None:
            self._open = self._open and self._parser.should_keep_alive()
            self._complete()

    def _complete(self) -> None:
        assert self._exchange is not None
        answer = self._exchange.answer
        if self._exchange.status != 200:
            self._finish(f"HTTP {self._exchange.status}: {_refusal_text(self._refusal)}")
        elif not self._streams:
            self._finish(f"no event stream: {_refusal_text(self._refusal)}")
        elif answer.error is not None:
            self._finish(answer.error)
        elif not answer.done and answer.finish_reason is None:
            self._finish("the stream ended without a finish reason")
        else:
            self._finish(None)

    def _finish(self, error: str | None) -> None:
        if self._exchange is None or self._finished is None:
            return
        self._exchange.error = error
        self._exchange = None
        if not self._finished.done():
            self._finished.set_result(None)


def _refusal_text(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:300] or "no reason given"
    return error_message(found) if isinstance(found, dict) else text[:300]
