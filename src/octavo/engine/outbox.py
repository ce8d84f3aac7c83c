"""What happened to the requests of one `run` and has not been read yet. Bounded; used on one event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.engine.events import Fault, StepEvent
from octavo.engine.wire import WireEvent
from octavo.outputs import TextDelta
from octavo.request import Request


@dataclass(slots=True)
class _Growing:
    """Plain deltas of one choice that will be read as one."""

    choice: Choice
    texts: list[str]
    token_ids: list[int]


@dataclass(slots=True, eq=False)
class Choice:
    """One request of an outbox."""

    outbox: Outbox
    handle: int
    request_id: str
    index: int
    ended: bool = False
    growing: _Growing | None = None


@dataclass(slots=True)
class Outbox:
    """Events in the order of their steps; those of one request that only add text and tokens are merged.

    While its reader is elsewhere it holds at most `max_tokens` unread tokens per request, alternatives of
    log-probabilities counted too, and none that is older than `max_age_s` while more come. A reader that waits in
    `take` is not behind, however much arrives before it gets its turn.
    """

    max_tokens: int
    max_age_s: float
    choices: tuple[Choice, ...] = ()
    num_open: int = 0
    _entries: list[StepEvent | _Growing] = field(default_factory=list)
    _unread: int = 0
    _oldest: float = 0.0
    _waiter: asyncio.Future[None] | None = None
    _failure: Exception | None = None

    @classmethod
    def of(cls, requests: Sequence[Request], first_handle: int, max_tokens: int, max_age_s: float) -> Outbox:
        outbox = cls(max_tokens * len(requests), max_age_s, num_open=len(requests))
        outbox.choices = tuple(
            Choice(outbox, handle, request.request_id, request.choice)
            for handle, request in enumerate(requests, first_handle)
        )
        return outbox

    @property
    def is_done(self) -> bool:
        """All have ended and all was read."""
        return not self.num_open and not self._entries and self._failure is None

    def put(self, choice: Choice, event: WireEvent, now: float) -> bool:
        """Take an event that arrives at `now` seconds; False if the reader has fallen too far behind."""
        if not self._entries:
            self._oldest = now
        if len(event) == 3:
            _, text, token_ids = event
            growing = choice.growing
            if growing is None:
                growing = choice.growing = _Growing(choice, [], [])
                self._entries.append(growing)
            growing.texts.append(text)
            growing.token_ids += token_ids
            self._unread += len(token_ids)
        else:
            self._put_whole(choice, event[1])
        self._wake()
        if self._waiter is not None:
            return True
        return self._unread <= self.max_tokens and now - self._oldest <= self.max_age_s

    def end(self, fault: Fault, error: str) -> list[int]:
        """End all that has not ended; their handles."""
        ended = [choice for choice in self.choices if not choice.ended]
        for choice in ended:
            delta = TextDelta(choice.request_id, choice.index, "", (), "error")
            self._put_whole(choice, StepEvent(delta, error=error, fault=fault))
        self._wake()
        return [choice.handle for choice in ended]

    def fail(self, error: Exception) -> None:
        """Have `take` raise: nothing was queued."""
        self._failure = error
        self.num_open = 0
        self._wake()

    async def take(self) -> list[StepEvent]:
        """All that is unread, at least one event, once there is any. Raises what `fail` was given."""
        if not self._entries and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        entries, self._entries, self._unread = self._entries, [], 0
        return [_read(entry) if isinstance(entry, _Growing) else entry for entry in entries]

    def _put_whole(self, choice: Choice, event: StepEvent) -> None:
        choice.growing = None
        self._entries.append(event)
        self._unread += len(event.delta.token_ids)
        if event.logprobs is not None:
            self._unread += len(event.logprobs.top)
        if event.delta.finish_reason is not None:
            choice.ended = True
            self.num_open -= 1

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _read(entry: _Growing) -> StepEvent:
    """The one event that many became. What arrives later begins another."""
    choice = entry.choice
    if choice.growing is entry:
        choice.growing = None
    text = "".join(entry.texts)
    return StepEvent(TextDelta(choice.request_id, choice.index, text, tuple(entry.token_ids)))
