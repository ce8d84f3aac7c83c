"""How many requests may wait for the engine, and when to come again if too many do. Counts; owns no request."""

from __future__ import annotations

import math

from octavo.engine.wire import Step
from octavo.errors import InvalidRequest, QueueFull

_MAX_RETRY_S = 60
_WEIGHT = 0.2  # of the newest interval in the mean


class QueueGate:
    """Admits to the queue by what the engine told last, and what it was sent since.

    Up to `max_num_seqs` run; `max_queue` more may wait. A request enters with all its choices once there is room for
    one of them, so that single ones, coming without end, never keep out one of several; the queue is over its bound by
    the other choices then. While the engine has left some waiting, free slots do not count: what it lacks is memory.
    """

    def __init__(self, max_queue: int, max_num_seqs: int) -> None:
        self._max_queue = max_queue
        self._max_num_seqs = max_num_seqs
        self._num_sent = self._num_received = self._num_waiting = self._num_running = 0
        self._last_end: float | None = None
        self._interval_s: float | None = None  # between the ends of two requests

    @property
    def num_queued(self) -> int:
        """How many wait, or are on their way to the engine and will."""
        free = 0 if self._num_waiting else max(0, self._max_num_seqs - self._num_running)
        return max(0, self._num_waiting + self._num_sent - self._num_received - free)

    def admit(self, n: int) -> int:
        """Count the `n` choices of a request as sent; how many were sent before.

        Raises `QueueFull`, or `InvalidRequest` if so many choices can never be there at once.
        """
        if n > self._max_num_seqs + self._max_queue:
            raise InvalidRequest(
                f"{n} choices are asked for at once; at most {self._max_num_seqs} run and {self._max_queue} wait here: "
                "ask for fewer, or raise --max-queue"
            )
        free = 0 if self._num_waiting else max(0, self._max_num_seqs - self._num_running)
        excess = self._num_waiting + self._num_sent - self._num_received + 1 - free - self._max_queue
        if excess > 0:
            retry = self._retry_after(excess)
            raise QueueFull(
                f"{self.num_queued} requests wait already and at most {self._max_queue} may; try again in {retry} s",
                retry,
            )
        before = self._num_sent
        self._num_sent += n
        return before

    def update(self, step: Step, num_ended: int, now: float) -> None:
        """Take in what the engine tells; `num_ended` requests have ended with it, at `now` seconds."""
        _, self._num_received, self._num_waiting, self._num_running, _ = step
        if num_ended and self._last_end is not None:
            interval = (now - self._last_end) / num_ended
            known = self._interval_s
            self._interval_s = interval if known is None else known + _WEIGHT * (interval - known)
        if num_ended:
            self._last_end = now
        if not self._num_waiting and not self._num_running:
            self._last_end = None  # a pause says nothing of how fast requests end

    def _retry_after(self, excess: int) -> int:
        """Whole seconds until `excess` requests will have left, going by the latest ones."""
        return min(_MAX_RETRY_S, max(1, math.ceil(excess * (self._interval_s or 0.0))))
