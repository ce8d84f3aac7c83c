"""Nodes of the prefix tree in the order of their last use, least recent first. Decides nothing about them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from octavo.cache.prefix_tree import PrefixNode


class LruQueue:
    """A heap whose entries are checked only when they come up: using a node again costs nothing.

    A node stands in it at most once, marked by bit `bit` of its `queued`. Push and pop cost O(log n), amortised.
    """

    def __init__(self, bit: int) -> None:
        self._mask = 1 << bit
        self._heap: list[tuple[int, int, PrefixNode]] = []
        self._serial = 0
        self._compact_at = 64

    def __contains__(self, node: PrefixNode) -> bool:
        return bool(node.queued & self._mask)

    def push(self, node: PrefixNode) -> None:
        if node.queued & self._mask:
            return
        node.queued |= self._mask
        self._serial += 1
        heappush(self._heap, (node.last_use, self._serial, node))
        if len(self._heap) > self._compact_at:  # nodes that left the tree otherwise stay until they come up
            self._heap = [entry for entry in self._heap if entry[2].alive]
            heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + 64

    def pop(self) -> PrefixNode | None:
        """The node that was used longest ago, out of the queue; None if there is none."""
        while self._heap:
            last_use, _, node = heappop(self._heap)
            node.queued &= ~self._mask
            if not node.alive:
                continue
            if node.last_use != last_use:
                self.push(node)
                continue
            return node
        return None
