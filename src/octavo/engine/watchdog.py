"""Notices an engine that has work and says nothing. Owns a timer on the event loop; it ends nothing."""

from __future__ import annotations

import asyncio
import logging

_LOG = logging.getLogger(__name__)
# The first step may compile kernels and touch every weight for the first time.
_FIRST_STEP_FACTOR = 5
_MAX_CHECK_INTERVAL_S = 5.0


class Watchdog:
    """While work is watched, a silence of more than `limit_s` seconds is logged, and kept as `complaint`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._first = True
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self.complaint = ""

    def watch(self) -> None:
        """Work begins."""
        self._watching = True
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._check_interval_s, self._check)

    def heard(self) -> float:
        """The engine said something: now, in seconds, by the event loop's clock."""
        now = asyncio.get_running_loop().time()
        if self.complaint:
            _LOG.warning("the engine goes on after %.0f s", now - self._heard_at)
            self.complaint = ""
        self._heard_at, self._first = now, False
        return now

    def rest(self) -> None:
        """There is no work."""
        self._watching = False

    def stop(self) -> None:
        self._watching = False
        self.complaint = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _check_interval_s(self) -> float:
        return min(_MAX_CHECK_INTERVAL_S, self._limit_s / 4)

    def _check(self) -> None:
        self._timer = None
        if not self._watching:
            return
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._heard_at
        if silent > self._limit_s * (_FIRST_STEP_FACTOR if self._first else 1):
            if not self.complaint:
                _LOG.warning("the engine has not finished a step for %.0f s", silent)
            self.complaint = f"a step has taken {silent:.0f} s so far"
        self._timer = loop.call_later(self._check_interval_s, self._check)
