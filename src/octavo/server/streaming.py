"""Sends what a generation says, whole or as server-sent events, for as long as somebody listens.

It knows when to speak, to wait and to give up; what the bytes say is the format's matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.errors import outcome_of
from octavo.server.generation import CallUsage, ChoiceDelta, Generation, joined
from octavo.server.sent_response import note_outcome

STALL_S = 30.0  # that a client may leave what was sent to it unread
_KEEP_ALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_log = logging.getLogger(__name__)


class AnswerFormat(Protocol):
    """Writes the answer of one call."""

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Server-sent events for `deltas`; may be none."""
        ...

    def ending(self, usage: CallUsage) -> bytes:
        """The last events of a stream that went well."""
        ...

    def failure(self, error: OctavoError) -> bytes:
        """The last events of a stream that has begun and that `error` ends."""
        ...

    def whole(self, choices: Sequence[ChoiceDelta], usage: CallUsage) -> bytes:
        """The JSON of a whole answer; `choices` in the order of their index."""
        ...


class GenerationResponse(Response):
    """Runs `generation` and answers with it. A client that leaves, or stalls a stream, ends the generation.

    Nothing is sent before the generation's first events, so that a refusal has its own status; unless they are longer
    in coming than `keep_alive_s`. From then on an error is an event, and the last one.
    """

    def __init__(
        self,
        generation: Generation,
        answer: AnswerFormat,
        *,
        stream: bool,
        keep_alive_s: float,
        stall_s: float = STALL_S,
    ) -> None:
        self.status_code = 200
        self.media_type = "text/event-stream" if stream else "application/json"
        self.background = None
        self.init_headers(_STREAM_HEADERS if stream else None)
        self._generation = generation
        self._answer = answer
        self._stream = stream
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream:
            events = _EventStream(send, self.raw_headers, self._keep_alive_s, self._stall_s)
            ended = await while_connected(self._send_events(events, scope), receive, events.due, events.attend)
        else:
            ended = await while_connected(self._send_whole(scope, receive, send), receive)
        if not ended:
            _log.info("%s: the client has gone", self._generation.call_id)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: dict[int, list[ChoiceDelta]] = {}
        async with aclosing(self._generation.deltas()) as batches:
            async for deltas in batches:
                for delta in deltas:
                    pieces.setdefault(delta.index, []).append(delta)
        choices = [joined(pieces[index]) for index in sorted(pieces)]
        body = self._answer.whole(choices, self._generation.usage)
        await Response(body, media_type=self.media_type)(scope, receive, send)

    async def _send_events(self, events: _EventStream, scope: Scope) -> None:
        try:
            async with aclosing(self._generation.deltas()) as batches:
                async for deltas in batches:
                    chunks = self._answer.chunks(deltas)
                    if chunks:
                        await events.send(chunks)
        except OctavoError as error:
            if not events.started:
                raise
            await events.send(self._answer.failure(error), last=True)
            note_outcome(scope, outcome_of(error))
            return
        await events.send(self._answer.ending(self._generation.usage), last=True)


class _EventStream:
    """The sending end of one stream. `send` is called by one task, `attend` by another that watches it."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], keep_alive_s: float, stall_s: float) -> None:
        self._send = send
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._clock = asyncio.get_running_loop().time
        self._one_at_a_time = asyncio.Lock()
        self._silent_since = self._clock()
        self._sending_since: float | None = None
        self.started = False

    async def send(self, events: bytes, *, last: bool = False) -> None:
        """Waits while the client has too much unread."""
        self._sending_since = self._clock()
        async with self._one_at_a_time:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": events, "more_body": not last})
        self._silent_since = self._clock()
        self._sending_since = None

    def due(self) -> float:
        """Seconds until `attend` has something to look at."""
        if self._sending_since is not None:
            return self._sending_since + self._stall_s - self._clock()
        return self._silent_since + self._keep_alive_s - self._clock()

    async def attend(self) -> bool:
        """Say something if nothing was said for long; False if the client has stalled."""
        if self.due() > 0:
            return True
        if self._sending_since is None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await self.send(_KEEP_ALIVE)
            except TimeoutError:
                pass
            else:
                return True
        _log.warning("a client left its stream unread for %g s and was cut off", self._stall_s)
        return False


async def while_connected(
    work: Coroutine[None, None, None],
    receive: Receive,
    due: Callable[[], float] | None = None,
    attend: Callable[[], Awaitable[bool]] | None = None,
) -> bool:
    """Run `work` to its end; True if it got there. It is cancelled, and has ended, if the client leaves before.

    `attend` is called whenever `due()` seconds have passed; False from it counts as leaving. Raises what `work` does.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        while not working.done():
            timeout = None if due is None else max(0.01, due())
            await asyncio.wait({working, leaving}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                break
            if leaving.done() or (attend is not None and not await attend()):
                return False
        working.result()
        return True
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    """The body has been read, so all that can still come is that the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
