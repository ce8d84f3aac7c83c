"""Takes a picture of the machine at every tick while somebody watches, one for all who do. Owns the timer.

Nothing runs while nobody watches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from octavo.engine.machine import MachineSnapshot
from octavo.engine.serving import ServingEngine
from octavo.errors import EngineFault, NotReady
from octavo.server.errors import HttpError

MAX_VIEWERS = 32
TICK_S = 0.25
MAX_TICK_S = 5.0
ENGINE_SHARE = 0.005  # of the engine's time that snapshots may take; where they take more, ticks are fewer
BUSY_S = 1.0  # after which a step is said to take long
_log = logging.getLogger(__name__)

# A snapshot, or None where there is none; and whether that is because a step takes long.
Draw = Callable[[MachineSnapshot | None, bool], bytes]


class Viewer:
    """One who watches. Who reads slowly misses pictures, and nobody waits for him."""

    def __init__(self) -> None:
        self._latest: bytes | None = None
        self._fresh = asyncio.Event()
        self._closed = False

    async def next(self) -> bytes | None:
        """The latest picture not seen yet, waited for; None at the end."""
        await self._fresh.wait()
        self._fresh.clear()
        picture, self._latest = self._latest, None
        if picture is None and self._closed:
            self._fresh.set()
        return picture

    def show(self, picture: bytes) -> None:
        self._latest = picture
        self._fresh.set()

    def close(self) -> None:
        """After what was shown last, nothing more comes."""
        self._closed = True
        self._fresh.set()


class MachineFeed:
    """Used on one event loop's thread."""

    def __init__(self, engine: ServingEngine, draw: Draw, tick_s: float = TICK_S) -> None:
        self._engine = engine
        self._draw = draw
        self._tick_s = tick_s
        self._viewers: set[Viewer] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[MachineSnapshot] | None = None
        self._costs: deque[float] = deque(maxlen=4)

    @property
    def num_viewers(self) -> int:
        return len(self._viewers)

    @property
    def is_ticking(self) -> bool:
        return self._ticking is not None

    @property
    def interval_s(self) -> float:
        """From one tick to the next: longer where a snapshot of this machine takes the engine long."""
        usual = min(self._costs, default=0.0)  # one may have been interrupted
        return min(MAX_TICK_S, max(self._tick_s, usual / ENGINE_SHARE))

    def join(self) -> Viewer:
        """Begin to watch; `leave` must follow. Raises an `HttpError` while too many do."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise HttpError(
                429,
                f"{MAX_VIEWERS} viewers watch already, which is the most; close a page, or try again later",
                type="rate_limit_error",
                code="too_many_viewers",
                headers={"retry-after": "10"},
            )
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().create_task(self._tick_on())
            self._ticking.add_done_callback(self._note_end)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _tick_on(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                began = clock()
                picture = await self._picture()
                for viewer in self._viewers:
                    viewer.show(picture)
                if self._engine.status.state == "stopped":
                    return
                await asyncio.sleep(max(0.0, began + self.interval_s - clock()))
        finally:
            if self._asked is not None:
                self._asked.cancel()
                self._asked = None

    async def _picture(self) -> bytes:
        if self._engine.status.state not in ("ready", "draining"):
            return self._draw(None, False)
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._engine.inspect())
        asked = self._asked
        await asyncio.wait({asked}, timeout=BUSY_S)
        if not asked.done():
            return self._draw(None, True)
        self._asked = None
        try:
            snapshot = asked.result()
        except (NotReady, EngineFault):  # it ended meanwhile; its state says so
            return self._draw(None, False)
        self._costs.append(snapshot.took_s)
        return self._draw(snapshot, False)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _log.error("the live page's stream failed: %s", error, exc_info=error)
        self._ticking = None
        for viewer in self._viewers:
            viewer.close()
