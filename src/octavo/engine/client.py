"""How callers talk to an engine: requests in, events out. In process here; other forms keep the protocol."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Protocol

from octavo.engine.core import EngineCore
from octavo.engine.events import StepEvent
from octavo.engine.hand_off import NO_HAND_OFF, HandOff
from octavo.engine.interrupts import HeldInterrupts
from octavo.request import Request


class EngineClient(Protocol):
    """Runs sets of requests, several at a time if their iterators are taken in turns or by several threads."""

    def run(self, requests: Sequence[Request], hand_off: HandOff = NO_HAND_OFF) -> Generator[StepEvent]:
        """Queue `requests`, all or none, and yield their events as they happen, until each of them has ended.

        `hand_off` holds for each of them.
        Nothing is queued before the first event is taken. Raises `InvalidRequest` or `CapacityError`. Leaving the
        iterator early, or any exception, aborts those that still run: no block stays behind.
        """
        ...


class InProcessClient:
    """Runs the engine's steps in the caller's own thread, as it takes events.

    Threads share the engine: whoever finds no event waiting runs the next step for all.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._lock = threading.RLock()  # holds the engine and the table of inboxes
        self._inboxes: dict[str, deque[StepEvent]] = {}  # of every request that has not ended

    def run(self, requests: Sequence[Request], hand_off: HandOff = NO_HAND_OFF) -> Generator[StepEvent]:
        """See EngineClient."""
        inbox: deque[StepEvent] = deque()
        mine: set[str] = set()
        try:
            for request in requests:
                with self._lock, HeldInterrupts():
                    self._core.add(request, hand_off)
                    self._inboxes[request.request_id] = inbox
                    mine.add(request.request_id)
            while mine:
                while not inbox:
                    self._step(inbox)
                event = inbox.popleft()
                if event.delta.finish_reason is not None:
                    mine.remove(event.delta.request_id)
                yield event
        finally:
            with self._lock, HeldInterrupts():
                for request_id in mine:
                    self._inboxes.pop(request_id, None)
                    self._core.abort(request_id)

    def _step(self, inbox: deque[StepEvent]) -> None:
        """One step for all, unless another thread's has filled `inbox`; each event goes to its request's inbox."""
        with self._lock, HeldInterrupts() as interrupts:
            if inbox:
                return
            assert self._core.has_work, "a request was lost"
            for event in self._core.step(interrupts.let_through):
                request_id = event.delta.request_id
                ended = event.delta.finish_reason is not None
                owner = self._inboxes.pop(request_id) if ended else self._inboxes[request_id]
                owner.append(event)
