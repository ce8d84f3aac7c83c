"""What of the prefix tree goes when room is needed, and the cache's references to blocks, taken and given back.

Owns the order of eviction and the bytes held; the tree's shape and what is worth keeping are its callers'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.lru_queue import LruQueue
from octavo.cache.prefix_tree import PrefixNode, PrefixTree
from octavo.cache.prefix_types import PrefixCounters, Snapshot
from octavo.cache.spec import CacheGroup


class Eviction:
    """Least recently used first, by two ways that suit what blocks are needed for.

    A leaf gives up its last position, all groups of it: a full group's block is worth nothing without those before.
    For want of a windowed group's blocks, that group's go first to last within an edge, whatever lies below it: a
    window at the end of a prefix needs none of the earlier ones.

    Blocks that a sequence uses are passed over. Where one stops a leaf or an edge, that leaves its queue, the block is
    watched in its pool, and when its last user is gone it stands in line again: nothing is ever searched for.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        tree: PrefixTree,
        bytes_per_block: Sequence[int],
        counters: PrefixCounters,
    ) -> None:
        self.num_bytes = self.num_snapshot_bytes = 0
        self._pools = tuple(pools)
        self._tree = tree
        self._sizes = tuple(bytes_per_block)
        self._counters = counters
        self._full = [g for g, group in enumerate(groups) if not group.bounded]
        self._windows = {g: LruQueue(1 + g) for g, group in enumerate(groups) if group.spec.window is not None}
        self._leaves = LruQueue(0)
        self._watched: dict[tuple[int, int], PrefixNode] = {}

    # -- taking in ----------------------------------------------------------------------------------------------

    def sizes_of(self, blocks: Sequence[Sequence[int | None]], n: int) -> list[int]:
        """Bytes of each of `n` positions, given the block ids per group."""
        sizes = [0] * n
        for ids, size in zip(blocks, self._sizes, strict=True):
            for i, block_id in enumerate(ids):
                if block_id is not None:
                    sizes[i] += size
        return sizes

    def add(self, node: PrefixNode, tokens: bytes, blocks: list[list[int | None]]) -> PrefixNode:
        """Put a run at the end of `node`, lengthening it if it is a leaf; returns the node that ends with the run."""
        for pool, ids in zip(self._pools, blocks, strict=True):
            pool.cache([block_id for block_id in ids if block_id is not None])
        self.num_bytes += sum(self.sizes_of(blocks, len(tokens) // self._tree.stride))
        if node.is_root or node.children:
            node = self._tree.attach(node, tokens, blocks)
        else:
            node.tokens += tokens
            for ids, more in zip(node.blocks, blocks, strict=True):
                ids.extend(more)
        self.requeue(node)
        return node

    def renew(self, node: PrefixNode, group: int, index: int, block_id: int, room: float) -> None:
        """Put a block in place of an idle one with the same rows, or where there is none if `room` bytes take it."""
        pool, old = self._pools[group], node.blocks[group][index]
        if old is None:
            if self._sizes[group] > room:
                self._counters.rejects += 1
                return
            self.num_bytes += self._sizes[group]
        elif pool.is_idle(old):
            pool.uncache(old)
            self._watched.pop((group, old), None)
        else:
            return
        pool.cache((block_id,))
        node.blocks[group][index] = block_id
        node.first_held[group] = min(node.first_held[group], index)
        self.requeue(node)

    def keep_snapshot(self, node: PrefixNode, at: int, snapshot: Snapshot) -> None:
        """Put a snapshot at absolute block `at`, in place of one that is there."""
        self._drop_snapshot(node, at)
        node.snapshots[at] = snapshot
        self.num_bytes += snapshot.num_bytes
        self.num_snapshot_bytes += snapshot.num_bytes

    def requeue(self, *nodes: PrefixNode) -> None:
        """Have nodes looked at again, because they changed."""
        for node in nodes:
            if node.alive and not node.is_root:
                if not node.children:
                    self._leaves.push(node)
                for queue in self._windows.values():
                    queue.push(node)

    # -- giving up ----------------------------------------------------------------------------------------------

    def shrink_to(self, num_bytes: int) -> None:
        """Give up leaves until at most `num_bytes` are held, or all that is left is in use."""
        self._wake()
        while self.num_bytes > num_bytes and self._evict_leaf(lambda: self.num_bytes <= num_bytes):
            pass

    def shrink_snapshots_to(self, num_bytes: int) -> None:
        """Give up snapshots until at most `num_bytes` of them are held. Reads the whole tree if there are more.

        The first one of a path goes before later ones: who goes on where that ended needs these.
        """
        if self.num_snapshot_bytes <= num_bytes:
            return
        held = [(node.last_use, at, node) for node in self._tree.nodes() for at in node.snapshots]
        for _, at, node in sorted(held, key=lambda entry: entry[:2]):
            if self.num_snapshot_bytes <= num_bytes:
                return
            self._drop_snapshot(node, at)
            self._strip(node)

    def free_blocks(self, group: int, num_free: int) -> None:
        """Free blocks of `group` until `num_free` are. The pool must have as many free and cached ones."""
        pool = self._pools[group]
        assert pool.num_free + pool.num_cached >= num_free, "more blocks are to be evicted than can be"
        self._wake()

        def enough() -> bool:
            return pool.num_free >= num_free

        while not enough():
            if group in self._windows:
                done = self._punch(group, enough)
            else:
                done = self._evict_leaf(enough) or self._cut_above_leaves(group)
            assert done, "a cached block cannot be found"

    def forget(self, group: int, block_ids: frozenset[int]) -> None:
        """Give up these blocks, in use or not; in a full group, all that follows them too."""
        for node in list(self._tree.nodes()):
            indices = [index for index, block_id in enumerate(node.blocks[group]) if block_id in block_ids]
            if not indices or not node.alive:  # or it went with an ancestor
                continue
            if group in self._windows:
                for index in indices:
                    self._drop(node, group, index)
                self._strip(node)
            else:
                self._cut(node, indices[0])

    def clear(self) -> None:
        """Give up everything."""
        for node in [node for node in self._tree.nodes() if node.start == 0]:
            self._cut(node, 0)

    def check_integrity(self) -> None:
        """Assert that bytes, pools and queues agree with the tree. Reads everything."""
        watched = set(map(id, self._watched.values()))
        num_bytes = snapshot_bytes = 0
        for node in self._tree.nodes():
            num_bytes += sum(self.sizes_of(node.blocks, self._tree.stop(node) - node.start))
            snapshot_bytes += sum(snapshot.num_bytes for snapshot in node.snapshots.values())
            assert node.children or node in self._leaves or id(node) in watched, "a leaf is not in line"
            for g, queue in self._windows.items():
                idle = any(i is not None and self._pools[g].is_idle(i) for i in node.blocks[g])
                assert not idle or node in queue or id(node) in watched, "a window's block is not in line"
        assert num_bytes + snapshot_bytes == self.num_bytes, "the bytes held are miscounted"
        assert snapshot_bytes == self.num_snapshot_bytes, "the bytes of snapshots are miscounted"
        for g, pool in enumerate(self._pools):
            held = [i for node in self._tree.nodes() for i in node.blocks[g] if i is not None]
            assert len(held) == len(set(held)), "a block is held twice"
            assert set(held) == {i for i in range(pool.num_blocks) if pool.is_cached(i)}, "marks and tree disagree"

    # -- leaves -------------------------------------------------------------------------------------------------

    def _evict_leaf(self, enough: Callable[[], bool]) -> bool:
        """Take positions off the end of the oldest leaf that has any to give; False if no leaf has."""
        while (node := self._leaves.pop()) is not None:
            if node.children:
                continue
            length = len(node.tokens)
            while node.tokens and not enough() and (user := self._user_of_tail(node)) is None:
                self._drop_tail(node)
            dropped = len(node.tokens) < length
            if not node.tokens:
                self._remove(node)
            elif enough():
                self._leaves.push(node)
            else:
                assert user is not None
                self._watch(node, *user)
            if dropped:
                return True
        return False

    def _user_of_tail(self, node: PrefixNode) -> tuple[int, int] | None:
        """Group and id of a block at the end of `node` that keeps it from going; None if nothing does."""
        for g in self._full or self._windows:
            block_id = node.blocks[g][-1]
            if block_id is not None and not self._pools[g].is_idle(block_id):
                return g, block_id
        return None

    def _cut_above_leaves(self, group: int) -> bool:
        """Cut off a prefix that others' blocks follow; False if there is none. Reads the paths that are in use.

        Two sequences that computed the same prompt at once may each have given a part of it: the first part is idle
        when its giver has ended, and the rest, still in use, hangs on it. That rest is forgotten, not freed.
        """
        for leaf in {id(node): node for node in self._watched.values() if node.alive}.values():
            path = []
            node: PrefixNode | None = leaf
            while node is not None and not node.is_root:
                path.append(node)
                node = node.parent
            for above in reversed(path):
                for index, block_id in enumerate(above.blocks[group]):
                    if block_id is not None and self._pools[group].is_idle(block_id):
                        self._cut(above, index)
                        return True
        return False

    # -- windows ------------------------------------------------------------------------------------------------

    def _punch(self, group: int, enough: Callable[[], bool]) -> bool:
        """Give up the idle blocks of one group in the oldest edge that has a place in line; False if none has."""
        node = self._windows[group].pop()
        if node is None:
            return False
        ids, first = node.blocks[group], None
        for index in range(node.first_held[group], len(ids)):
            block_id = ids[index]
            if block_id is None:
                continue
            if enough():
                self._windows[group].push(node)
            elif self._pools[group].is_idle(block_id):
                self._drop(node, group, index)
                continue
            else:
                self._watch(node, group, block_id)
            first = index if first is None else first
            if enough():
                break
        node.first_held[group] = len(ids) if first is None else first
        self._strip(node)
        return True

    def _strip(self, node: PrefixNode) -> None:
        """Take positions that hold nothing off the end of a leaf, and of its parent if that becomes one."""
        while node.alive and not node.is_root and not node.children:
            stop = self._tree.stop(node)
            if stop in node.snapshots or any(ids[-1] is not None for ids in node.blocks):
                self._leaves.push(node)
                return
            self._drop_tail(node)
            if not node.tokens:
                node = self._remove(node)

    # -- one block, one position, one edge ----------------------------------------------------------------------

    def _drop(self, node: PrefixNode, group: int, index: int) -> None:
        block_id = node.blocks[group][index]
        assert block_id is not None
        node.blocks[group][index] = None
        self._pools[group].uncache(block_id)
        self._watched.pop((group, block_id), None)
        self.num_bytes -= self._sizes[group]
        self._counters.evictions += 1

    def _drop_snapshot(self, node: PrefixNode, at: int) -> None:
        snapshot = node.snapshots.pop(at, None)
        if snapshot is not None:
            self.num_bytes -= snapshot.num_bytes
            self.num_snapshot_bytes -= snapshot.num_bytes

    def _drop_tail(self, node: PrefixNode) -> None:
        index = len(node.blocks[0]) - 1
        self._drop_snapshot(node, node.start + index + 1)
        for g, ids in enumerate(node.blocks):
            if ids[index] is not None:
                self._drop(node, g, index)
            del ids[index]
            node.first_held[g] = min(node.first_held[g], index)
        del node.tokens[index * self._tree.stride :]
        node.num_cuts += 1

    def _cut(self, node: PrefixNode, index: int) -> None:
        """Give up everything from block `index` of `node` on, and all below it."""
        for below in reversed(list(self._tree.below(node))):  # descendants come after their ancestors
            while below.tokens:
                self._drop_tail(below)
            self._tree.remove(below)
        while len(node.blocks[0]) > index:
            self._drop_tail(node)
        if node.tokens:
            self.requeue(node)
        else:
            self._remove(node)

    def _remove(self, node: PrefixNode) -> PrefixNode:
        parent = self._tree.remove(node)
        self.requeue(parent)
        return parent

    def _watch(self, node: PrefixNode, group: int, block_id: int) -> None:
        self._watched[group, block_id] = node
        self._pools[group].watch(block_id)

    def _wake(self) -> None:
        for g, pool in enumerate(self._pools):
            for block_id in pool.take_woken():
                node = self._watched.pop((g, block_id), None)
                if node is not None:
                    self.requeue(node)
