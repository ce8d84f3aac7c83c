"""Who is about to compute a beginning that others in line share, so that it is computed once. Admits nobody."""

from __future__ import annotations

from octavo.cache.prefix_types import TOKEN_BYTES, PrefixDomain
from octavo.scheduler.queue import WaitingRequest
from octavo.step_batch import StorageKind


class Siblings:
    """An index of requests by their first block, for one decision.

    Where dense sequences keep `rings`, only those of the same storage find what another leaves, and dense ones only at
    the end of the other's last whole block, where a snapshot of its rings is taken.
    """

    def __init__(self, block_size: int, *, rings: bool) -> None:
        self._block_size = block_size
        self._rings = rings
        self._stride = block_size * TOKEN_BYTES
        self._by_beginning: dict[tuple[PrefixDomain, bytes], list[tuple[WaitingRequest, int]]] = {}

    def add(self, waiting: WaitingRequest, num_computed: int) -> None:
        """A request that will share its whole blocks as it computes them; those before `num_computed` are shared."""
        if waiting.domain is not None and waiting.tokens is not None and len(waiting.tokens) >= self._stride:
            key = waiting.domain, waiting.tokens[: self._stride]
            self._by_beginning.setdefault(key, []).append((waiting, num_computed))

    def behind(self, waiting: WaitingRequest) -> tuple[str, ...]:
        """Those that were added and will compute whole blocks which `waiting` could share, were it admitted later."""
        domain, tokens = waiting.domain, waiting.tokens
        if domain is None or tokens is None:
            return ()
        usable = (len(tokens) // TOKEN_BYTES - 1) // self._block_size  # one token at least is left to compute
        if not usable:
            return ()
        found = []
        for other, num_computed in self._by_beginning.get((domain, tokens[: self._stride]), ()):
            assert other.tokens is not None, "only requests with tokens are added"
            common = self._common(tokens, other.tokens, usable)
            if common * self._block_size > num_computed and self._shares(waiting, other, common):
                found.append(other.request_id)
        return tuple(found)

    def _shares(self, waiting: WaitingRequest, other: WaitingRequest, common: int) -> bool:
        if not self._rings:
            return True
        if waiting.storage is not other.storage or other.tokens is None:
            return False
        last = (len(other.tokens) // TOKEN_BYTES - 1) // self._block_size
        return waiting.storage is StorageKind.PAGED or common >= last

    def _common(self, tokens: bytes, other: bytes, limit: int) -> int:
        """Whole blocks, at most `limit`, in which both begin alike. The first is known to be."""
        stride = self._stride
        limit = min(limit, len(other) // stride)
        if tokens[: limit * stride] == other[: limit * stride]:
            return limit
        low, high = 1, limit  # blocks before `low` are equal, one before `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            if tokens[low * stride : middle * stride] == other[low * stride : middle * stride]:
                low = middle
            else:
                high = middle
        return low
