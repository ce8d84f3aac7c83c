"""The responses that are kept, in memory, for as long as there is room. It knows nothing of what is in them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.server.errors import HttpError

MAX_RESPONSES = 1024
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`body` is the response's JSON; `conversation` is JSON of all messages up to it and with it."""

    body: bytes
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.conversation)


class ResponseStore:
    """Keeps the responses that were used last, within `max_responses` and `max_bytes`; the others are forgotten.

    A response of more than `max_bytes` is not kept at all.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()  # the one used last is last
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response_id: str, response: StoredResponse) -> None:
        """Keep a new one, forgetting others where there is no room."""
        assert response_id not in self._kept
        if response.num_bytes > self._max_bytes:
            return
        self._kept[response_id] = response
        self.num_bytes += response.num_bytes
        while len(self._kept) > self._max_responses or self.num_bytes > self._max_bytes:
            _, forgotten = self._kept.popitem(last=False)
            self.num_bytes -= forgotten.num_bytes

    def find(self, response_id: str) -> StoredResponse | None:
        """The response, which counts as used; None if it is not kept."""
        found = self._kept.get(response_id)
        if found is not None:
            self._kept.move_to_end(response_id)
        return found

    def get(self, response_id: str) -> StoredResponse:
        """As `find`. Raises a 404 `HttpError` if it is not kept."""
        found = self.find(response_id)
        if found is None:
            raise _not_found(response_id)
        return found

    def forget(self, response_id: str) -> None:
        """Raises a 404 `HttpError` if it is not kept."""
        found = self._kept.pop(response_id, None)
        if found is None:
            raise _not_found(response_id)
        self.num_bytes -= found.num_bytes


def _not_found(response_id: str) -> HttpError:
    message = (
        f"there is no response {response_id!r:.100} here; it was not stored, was deleted, or gave way to newer ones"
    )
    return HttpError(404, message, param="response_id", code="response_not_found")
