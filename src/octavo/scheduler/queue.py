"""The line of requests that wait for admission, first come first served. Decides nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from octavo.cache.prefix_types import PrefixDomain, TokenRun
from octavo.request import RequestState
from octavo.step_batch import StorageKind


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request without a slot, the storage it will get, and the most blocks per group it will ever hold.

    `tokens` are those it has, encoded, and `domain` is where to look for them in the prefix cache; None if it is not
    to be looked up, and gives nothing either.
    """

    state: RequestState
    storage: StorageKind
    blocks: tuple[int, ...]
    domain: PrefixDomain | None = None
    tokens: TokenRun | None = None


class WaitingQueue:
    """FIFO keyed by request id: push, pop and removal from the middle cost the same at any length."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, WaitingRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def push(self, waiting: WaitingRequest) -> None:
        """Join at the end."""
        self._requests[waiting.state.request.request_id] = waiting

    def push_front(self, waiting: WaitingRequest) -> None:
        """Return to the head: for a request whose admission was undone, or that was preempted."""
        self.push(waiting)
        self._requests.move_to_end(waiting.state.request.request_id, last=False)

    def pop(self, request_id: str) -> WaitingRequest:
        """Leave from wherever it stands. Raises `KeyError` if it does not wait."""
        return self._requests.pop(request_id)

    def head(self, n: int) -> Iterator[WaitingRequest]:
        """The first `n`, oldest first."""
        return islice(self._requests.values(), n)
