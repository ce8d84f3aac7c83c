"""The event loop that clients run in: uvloop's where there is one, which takes less of the processor than asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TypeVar

T = TypeVar("T")


def run_clients(work: Coroutine[None, None, T]) -> T:
    """As `asyncio.run`."""
    factory = None
    if find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
