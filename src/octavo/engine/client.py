"""How callers talk to an engine: submit requests, take events. In process here; other forms keep the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from octavo.engine.core import EngineCore, StepEvent
from octavo.request import Request


class EngineClient(Protocol):
    """Submits requests and yields what happens to them. Used by one thread."""

    def submit(self, request: Request) -> None:
        """Raises `InvalidRequest` or `CapacityError`, and then has queued nothing."""
        ...

    def events(self) -> Iterator[StepEvent]:
        """Events in the order they happen, until nothing is left to do."""
        ...

    def abort(self, request_id: str) -> None: ...


class InProcessClient:
    """Runs the engine's steps in the caller's own thread, as it takes events."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def submit(self, request: Request) -> None:
        self._core.add(request)

    def events(self) -> Iterator[StepEvent]:
        """Leaving the iterator early, or any exception, aborts what still runs: no block stays behind."""
        try:
            while self._core.has_work:
                yield from self._core.step()
        finally:
            self._core.abort_all()

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)
