"""When requests have waited or taken too long. Owns their deadlines; ends nothing, and reads no clock."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal, NamedTuple

from octavo.request import Request

Timeout = Literal["queue_timeout", "request_timeout"]


class Deadline(NamedTuple):
    """At `at` (seconds, by the clock that the arrival was told by) the limit of `limit_s` seconds is over."""

    at: float
    serial: int  # of the arrival: an id may be used again
    request_id: str
    kind: Timeout
    limit_s: float

    @property
    def text(self) -> str:
        """One line for who sent the request."""
        if self.kind == "queue_timeout":
            return (
                f"the request waited {self.limit_s:g} s for its first step, as long as it may; send it again later or "
                "allow a longer queue timeout"
            )
        return (
            f"the request took {self.limit_s:g} s, as long as it may; ask for fewer tokens or allow a longer request "
            "timeout"
        )


class Deadlines:
    """Adding one costs O(log n), asking O(1) until one is over. Requests without limits cost nothing."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._serials: dict[str, int] = {}  # of those that have a deadline and have not ended
        self._num_added = 0

    def add(self, request: Request, now: float) -> None:
        """`request` arrived at `now`."""
        limits: list[tuple[Timeout, float | None]] = [
            ("queue_timeout", request.queue_timeout_s),
            ("request_timeout", request.timeout_s),
        ]
        for kind, limit_s in limits:
            if limit_s is not None:
                self._serials[request.request_id] = self._num_added
                heappush(self._heap, Deadline(now + limit_s, self._num_added, request.request_id, kind, limit_s))
        self._num_added += 1

    def remove(self, request_id: str) -> None:
        """The request has ended. Ids without a deadline are passed over."""
        self._serials.pop(request_id, None)

    def over(self, now: float) -> list[Deadline]:
        """Those that `now` is not before, the earliest first, each told once."""
        found = []
        while self._heap and self._heap[0].at <= now:
            deadline = heappop(self._heap)
            if self._serials.get(deadline.request_id) == deadline.serial:
                found.append(deadline)
        return found
