"""What a server says and takes while it is soaked: its counters, and the memory of its two processes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from octavo.bench.child_process import children_of

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
PATIENCE_S = 30.0


class Counters:
    """One reading of /metrics."""

    def __init__(self, page: str) -> None:
        self._samples = [
            (name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _SAMPLE.findall(page)
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of `name` that have `labels`."""
        found = [value for each, has, value in self._samples if each == name and labels.items() <= has.items()]
        assert found or labels, f"/metrics has no {name}"
        return sum(found)

    @property
    def num_open(self) -> float:
        """Requests that run or wait."""
        return self.total("octavo_running_requests") + self.total("octavo_queue_requests")

    @property
    def idle(self) -> bool:
        return self.num_open == 0 and self.total("octavo_kv_blocks", state="live") == 0


async def counters(http: httpx.AsyncClient) -> Counters:
    """The server's, as they are now; the engine's are up to 0.2 s old."""
    response = await http.get("/metrics")
    return Counters(response.raise_for_status().text)


async def wait_for(http: httpx.AsyncClient, what: str, holds: Callable[[Counters], bool]) -> Counters:
    """The first reading for which `holds`. Raises `AssertionError`, naming `what`, if that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not holds(found := await counters(http)):
        if time.monotonic() > end:
            live = found.total("octavo_kv_blocks", state="live")
            raise AssertionError(f"not {what} after {PATIENCE_S:g} s: {found.num_open:g} open, {live:g} blocks live")
        await asyncio.sleep(0.05)
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of the server's process and its engine's."""

    server: int
    engine: int

    @classmethod
    def of(cls, pid: int) -> Memory:
        """Of the server with this process id, which has one child."""
        (child,) = children_of(pid)
        return cls(_resident(pid), _resident(child))

    def growth(self, earlier: Memory) -> int:
        """Of the process that grew more."""
        return max(self.server - earlier.server, self.engine - earlier.engine)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
