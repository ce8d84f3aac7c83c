"""The line of requests that wait for admission, by priority and age. Decides nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from octavo.cache.prefix_types import PrefixDomain, TokenRun
from octavo.request import RequestState
from octavo.scheduler.policy import AGEING_TICKS, level_after
from octavo.step_batch import StorageKind


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request without a slot, the storage it will get, and the tokens it will be promised blocks for: `promised`.

    `blocks` are those of its promise, `spare` whether it may outgrow them, both per group. `tokens` are those it has,
    encoded, and `domain` is where to look for them in the prefix cache; None if it is not to be looked up, and gives
    nothing either. `arrival` is its place among all that ever came; before it joined it has waited `waited` ticks.
    """

    state: RequestState
    storage: StorageKind
    promised: int
    blocks: tuple[int, ...]
    spare: tuple[int, ...]
    domain: PrefixDomain | None = None
    tokens: TokenRun | None = None
    arrival: int = 0
    waited: int = 0
    reserve: bool = False  # promised its whole length, as it cannot be computed again

    @property
    def request_id(self) -> str:
        return self.state.request.request_id

    @property
    def num_tokens(self) -> int:
        return self.state.num_tokens

    @property
    def priority(self) -> int:
        return self.state.request.priority


class _Place(NamedTuple):
    """Sorts by itself: `level` first, then who came first."""

    level: int
    arrival: int
    request_id: str


@dataclass(slots=True)
class _Stay:
    waiting: WaitingRequest
    place: _Place
    since: int  # the tick at which it would have joined, had it waited without interruption


class WaitingQueue:
    """Sorted by effective priority, in each level first come first served. Nobody waits for ever: to wait is to rise.

    A request that returns stands where it stood among its level, before all that came later.
    """

    def __init__(self, ageing_ticks: int = AGEING_TICKS) -> None:
        self._ageing_ticks = ageing_ticks
        self._tick = 0
        self._stays: dict[str, _Stay] = {}
        self._line: list[_Place] = []
        self._rises: list[tuple[int, _Place]] = []  # a heap: at this tick whoever still has this place rises

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._stays

    def __iter__(self) -> Iterator[WaitingRequest]:
        """In the order of the line. It must not change meanwhile."""
        for place in self._line:
            yield self._stays[place.request_id].waiting

    def age(self) -> None:
        """One tick passes."""
        self._tick += 1
        while self._rises and self._rises[0][0] <= self._tick:
            _, place = heappop(self._rises)
            stay = self._stays.get(place.request_id)
            if stay is not None and stay.place == place:
                self._leave(place)
                self._stand(stay.waiting, stay.since)

    def get(self, request_id: str) -> WaitingRequest:
        """Raises `KeyError` if it does not wait."""
        return self._stays[request_id].waiting

    def push(self, waiting: WaitingRequest) -> None:
        """Join, or join again."""
        self._stand(waiting, self._tick - waiting.waited)

    def pop(self, request_id: str) -> WaitingRequest:
        """Leave from wherever it stands, with its time here counted. Raises `KeyError` if it does not wait."""
        stay = self._stays.pop(request_id)
        self._leave(stay.place)
        return replace(stay.waiting, waited=self._tick - stay.since)

    def level(self, waiting: WaitingRequest) -> int:
        """Effective priority of a request that was popped."""
        return level_after(waiting.priority, waiting.waited, self._ageing_ticks)

    def by_priority(self) -> dict[int, int]:
        """How many wait of each priority that requests were given."""
        return dict(Counter(stay.waiting.priority for stay in self._stays.values()))

    def _stand(self, waiting: WaitingRequest, since: int) -> None:
        levels_risen = (self._tick - since) // self._ageing_ticks
        place = _Place(waiting.priority - levels_risen, waiting.arrival, waiting.request_id)
        self._stays[waiting.request_id] = _Stay(waiting, place, since)
        insort(self._line, place)
        heappush(self._rises, (since + (levels_risen + 1) * self._ageing_ticks, place))

    def _leave(self, place: _Place) -> None:
        del self._line[bisect_left(self._line, place)]
