"""An engine of a process or thread of its own with the event loop it belongs to, and what tests read of its events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.engine.async_client import ProcessEngine, RemoteEngine, ServingLimits
from octavo.engine.events import StepEvent
from octavo.engine.stats import EngineStats
from octavo.request import Request

LIMITS = ServingLimits(max_queue=8, max_unread_tokens=200)
_T = TypeVar("_T")
Scene = Callable[[RemoteEngine], Awaitable[_T]]


class Stage:
    """An engine that has started, and the event loop it belongs to."""

    def __init__(self, engine: RemoteEngine) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        self._runner.run(engine.start())

    def play(self, scene: Scene[_T]) -> _T:
        async def in_time() -> _T:
            async with asyncio.timeout(60):
                return await scene(self.engine)

        return self._runner.run(in_time())

    def close(self) -> None:
        self._runner.run(self.engine.stop())
        self._runner.close()


async def collect(engine: RemoteEngine, *requests: Request) -> list[StepEvent]:
    return [event async for events in engine.run(requests) for event in events]


async def idle(engine: RemoteEngine) -> EngineStats:
    """The engine's numbers once nothing is left of any request."""
    while engine.stats is None or engine.stats.num_waiting or engine.stats.num_running:
        await asyncio.sleep(0.01)
    return engine.stats


def text_of(events: list[StepEvent]) -> str:
    return "".join(event.delta.text for event in events)


def ids_of(events: list[StepEvent]) -> tuple[int, ...]:
    return tuple(token_id for event in events for token_id in event.delta.token_ids)


def is_gone(engine: RemoteEngine) -> bool:
    """Whether the engine's process has been waited for."""
    assert isinstance(engine, ProcessEngine)
    assert engine.pid is not None
    try:
        os.kill(engine.pid, 0)
    except ProcessLookupError:
        return True
    return False
