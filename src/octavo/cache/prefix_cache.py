"""Which prefixes' blocks are kept for whom may come, and how much of them a new prompt can use.

Owns the references that the cache holds in the block pools; no sequence, no slot, and no decision when to evict.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

from octavo.cache.block_pool import BlockPool
from octavo.cache.eviction import Eviction
from octavo.cache.prefix_tree import PrefixNode, PrefixTree
from octavo.cache.prefix_types import (
    TOKEN_BYTES,
    PrefixCounters,
    PrefixDomain,
    PrefixHit,
    PrefixOptions,
    Snapshot,
    TokenRun,
)
from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import CacheGroup
from octavo.step_batch import StorageKind


@dataclass(slots=True)
class PrefixCursor:
    """How far a sequence's blocks are in the tree: up to absolute block `stop`, within `node`, which was cut
    `num_cuts` times by then.
    """

    node: PrefixNode
    stop: int
    num_cuts: int


class PrefixCache:
    """Full blocks by the tokens that they and all before them hold.

    A block enters after all its rows were written and is never written again while it is here. Used by one thread.
    """

    def __init__(
        self, groups: Sequence[CacheGroup], block_size: int, pools: Sequence[BlockPool], options: PrefixOptions
    ) -> None:
        """Raises `InvalidArgument` if `options` do not suit the groups."""
        sizes = options.bytes_per_block or (1,) * len(groups)
        if len(sizes) != len(groups):
            raise InvalidArgument(f"{len(groups)} groups are given {len(sizes)} block sizes; give one each")
        _check_limit(options.limit_bytes)
        _check_limit(options.snapshot_limit_bytes)
        self.counters = PrefixCounters()
        self.limit_bytes = options.limit_bytes
        self.snapshot_limit_bytes = options.snapshot_limit_bytes
        self._groups = tuple(groups)
        self._block_size = block_size
        self._tree = PrefixTree(block_size, len(groups), options.digest)
        self._eviction = Eviction(groups, pools, self._tree, sizes, self.counters)
        self._clock = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks and snapshots that are held."""
        return self._eviction.num_bytes

    @property
    def num_snapshot_bytes(self) -> int:
        """Bytes of the snapshots among them."""
        return self._eviction.num_snapshot_bytes

    def set_limit(self, limit_bytes: int | None) -> None:
        """Change the limit. What exceeds it goes at once, or where a sequence still uses it, when that has ended."""
        _check_limit(limit_bytes)
        self.limit_bytes = limit_bytes
        self.enforce_limit()

    def enforce_limit(self) -> None:
        """Evict what exceeds the limit and is used by nobody."""
        if self.limit_bytes is not None:
            self._eviction.shrink_to(self.limit_bytes)

    # -- looking up ---------------------------------------------------------------------------------------------

    def match(
        self, domain: PrefixDomain, tokens: TokenRun, storage: StorageKind = StorageKind.PAGED, keep: int = 0
    ) -> PrefixHit:
        """The longest usable prefix of `tokens`, short of the last one. Changes nothing.

        Usable: every full group has all its blocks, every window in blocks those that the next token sees and those
        of the `keep` front tokens, and if `storage` keeps rings or state, there is a snapshot at just this length.
        """
        path = self._path(domain, tokens)
        ids: list[list[int | None]] = [[] for _ in self._groups]
        snapshots: dict[int, Snapshot] = {}
        for node, n in path:
            for group_ids, node_ids in zip(ids, node.blocks, strict=True):
                group_ids.extend(node_ids[:n])
            snapshots.update((at, snapshot) for at, snapshot in node.snapshots.items() if at <= node.start + n)
        per_slot = any(not group.takes_blocks(storage) for group in self._groups)
        n = sum(count for _, count in path)
        while n:
            if per_slot:
                n = max((at for at in snapshots if at <= n), default=0)
            hole = self._last_hole(ids, n, storage, keep)
            if hole is None:
                break
            n = hole
        blocks = [self._seen(ids[g], g, n, storage, keep) for g in range(len(self._groups))]
        snapshot = snapshots.get(n) if per_slot else None
        return PrefixHit(domain, tokens, storage, keep, n * self._block_size, tuple(blocks), snapshot)

    def holds(self, hit: PrefixHit) -> bool:
        """True if all that `hit` names is still here."""
        path = self._path(hit.domain, hit.tokens)
        for g, wanted in enumerate(hit.blocks):
            have = [block_id for node, n in path for block_id in node.blocks[g][:n]]
            if len(have) < len(wanted) or any(w not in (None, h) for w, h in zip(wanted, have, strict=False)):
                return False
        at = hit.num_tokens // self._block_size
        return hit.snapshot is None or any(node.snapshots.get(at) is hit.snapshot for node, _ in path)

    def use(self, hit: PrefixHit) -> None:
        """Count a sequence that begins with `hit`, and mark what it uses as recent."""
        if not hit.num_tokens:
            self.counters.misses += 1
            return
        self.counters.hits += 1
        self.counters.hit_tokens += hit.num_tokens
        self._touch(self._path(hit.domain, hit.tokens, hit.num_tokens // self._block_size)[-1][0])

    def last_uses(self, group: int) -> dict[int, int]:
        """When each block of the group that is here was last used: at least 1, and more is later. Reads the tree."""
        return {i: 1 + node.last_use for node in self._tree.nodes() for i in node.blocks[group] if i is not None}

    # -- taking in ----------------------------------------------------------------------------------------------

    def resume(self, cursor: PrefixCursor | None) -> PrefixCursor | None:
        """`cursor` if it still points to its tokens, else None: then the prefix must be told from its start.

        Where an edge was cut, others' tokens may stand since, so a cut since the cursor was made ends it.
        """
        if cursor is None or not cursor.node.alive or cursor.num_cuts != cursor.node.num_cuts:
            return None
        return cursor if cursor.node.start < cursor.stop <= self._tree.stop(cursor.node) else None

    def insert(
        self,
        domain: PrefixDomain,
        cursor: PrefixCursor | None,
        tokens: TokenRun,
        ids: Sequence[Sequence[int | None]],
    ) -> PrefixCursor | None:
        """Take in the whole blocks after `cursor` (None: from the start), each group's `ids` for these.

        A block that is here and in use stays, and the offered one is left alone; an idle one gives way to it, and one
        that a window had given up is taken in again. The blocks must be live in their pools; the cache adds its own
        references. Returns the cursor for the next call: where these end, or as far as the limit let them in.
        """
        tree = self._tree
        node, at = (cursor.node, cursor.stop) if cursor is not None else (tree.make_root(domain), 0)
        first, total = at, at + len(tokens) // tree.stride
        while at < total:
            stop = tree.stop(node)
            if at < stop:
                n = tree.common(node, at - node.start, tokens, at - first, min(stop, total) - at)
                self._renew(node, at, n, ids, first)
                at += n
                if at < min(stop, total):
                    lower, node = node, tree.split(node, at - node.start)
                    self._eviction.requeue(lower, node)
                continue
            child = tree.child(node, tokens, at - first)
            if child is None:
                rest = [group_ids[at - first :] for group_ids in ids]
                return self._grow(domain, node, at, tokens[(at - first) * tree.stride :], rest)
            node = child
        self._touch(node)
        return PrefixCursor(node, at, node.num_cuts)

    def attach_snapshot(self, domain: PrefixDomain, tokens: TokenRun, snapshot: Snapshot) -> bool:
        """Keep `snapshot` of a sequence that holds exactly `tokens`; False if a limit leaves no room for it, or the
        full groups' blocks of this prefix are not here.

        It goes when the last block of that prefix goes, or for others' snapshots if it was used least recently. Raises
        `InvalidArgument` if `tokens` are not whole blocks.
        """
        num_blocks, rest = divmod(len(tokens), self._tree.stride)
        if rest or not num_blocks:
            raise InvalidArgument(
                f"a snapshot is offered at {len(tokens) // TOKEN_BYTES} tokens; it must be at a multiple of "
                f"{self._block_size}, at least 1 block"
            )
        path = self._path(domain, tokens, num_blocks)
        if path:
            self._touch(path[-1][0])
        self._make_room(snapshot.num_bytes)
        fits = self._make_snapshot_room(snapshot.num_bytes)
        here = sum(n for _, n in self._path(domain, tokens, num_blocks)) == num_blocks
        if not fits or self._room() < snapshot.num_bytes or not (here or all(group.bounded for group in self._groups)):
            self.counters.rejects += 1
            return False
        cursor = self.insert(domain, None, tokens, [[None] * num_blocks for _ in self._groups])
        assert cursor is not None, "positions without blocks need no room"
        self._eviction.keep_snapshot(cursor.node, num_blocks, snapshot)
        return True

    # -- giving up ----------------------------------------------------------------------------------------------

    def evict(self, group: int, num_free: int) -> None:
        """Give up blocks that nobody uses, least recently used first, until the group's pool has `num_free` free.

        There must be as many free and cached ones. Costs O(blocks given up * log n).
        """
        self._eviction.free_blocks(group, num_free)

    def forget(self, group: int, block_id: int) -> None:
        """As `forget_all`, of one block that is here."""
        self.forget_all(group, (block_id,))

    def forget_all(self, group: int, block_ids: Collection[int]) -> None:
        """Give up these blocks whoever uses them, and in a full group all that follows them. Reads the whole tree."""
        if block_ids:
            self._eviction.forget(group, frozenset(block_ids))

    def clear(self) -> None:
        """Forget everything; sequences keep what they hold."""
        self._eviction.clear()

    # -- proof --------------------------------------------------------------------------------------------------

    def held_blocks(self, group: int) -> list[int]:
        """Every block of the group that the cache holds, for integrity checks. Reads the whole tree."""
        return [i for node in self._tree.nodes() for i in node.blocks[group] if i is not None]

    def check_integrity(self) -> None:
        """Assert that tree, pools and eviction order agree. Reads everything."""
        self._tree.check_integrity()
        self._eviction.check_integrity()

    # -- helpers ------------------------------------------------------------------------------------------------

    def _path(self, domain: PrefixDomain, tokens: TokenRun, limit: int | None = None) -> list[tuple[PrefixNode, int]]:
        root = self._tree.root(domain)
        if root is None:
            return []
        if limit is None:  # at least one token must be left to compute
            limit = max(0, len(tokens) // TOKEN_BYTES - 1) // self._block_size
        return self._tree.walk(root, tokens, limit)

    def _last_hole(self, ids: list[list[int | None]], n: int, storage: StorageKind, keep: int) -> int | None:
        """The last block that a hit of `n` blocks needs of a windowed group and does not find; None if it finds all.

        A hit that ends after that block, if before block `n`, needs it too: its window begins no later.
        """
        for g, group in enumerate(self._groups):
            if group.spec.window is None or not group.takes_blocks(storage):
                continue
            kept, seen = self._needed(g, n, keep)
            for b in chain(range(n - 1, max(kept, seen) - 1, -1), range(kept - 1, -1, -1)):
                if ids[g][b] is None:
                    return b
        return None

    def _needed(self, group: int, n: int, keep: int) -> tuple[int, int]:
        """In a windowed group a hit of `n` blocks needs the blocks `[0, first)` and `[second, n)`."""
        size = self._block_size
        return min(n, -(-keep // size)), self._groups[group].spec.first_visible(n * size) // size

    def _seen(
        self, ids: Sequence[int | None], group: int, n: int, storage: StorageKind, keep: int
    ) -> tuple[int | None, ...]:
        if not self._groups[group].takes_blocks(storage):
            return ()
        if self._groups[group].spec.window is None:
            return tuple(ids[:n])
        kept, seen = self._needed(group, n, keep)
        return tuple([block_id if b < kept or b >= seen else None for b, block_id in enumerate(ids[:n])])

    def _touch(self, node: PrefixNode | None) -> None:
        self._clock += 1
        while node is not None:
            node.last_use = self._clock
            node = node.parent

    def _room(self) -> float:
        return float("inf") if self.limit_bytes is None else self.limit_bytes - self.num_bytes

    def _make_room(self, num_bytes: int) -> None:
        if self.limit_bytes is not None:
            self._eviction.shrink_to(max(0, self.limit_bytes - num_bytes))

    def _make_snapshot_room(self, num_bytes: int) -> bool:
        """Whether a snapshot of this size fits in beside others, the oldest of which go."""
        limit = self.snapshot_limit_bytes
        if limit is None or num_bytes > limit:
            return limit is None
        self._eviction.shrink_snapshots_to(limit - num_bytes)
        return True

    def _renew(self, node: PrefixNode, at: int, n: int, ids: Sequence[Sequence[int | None]], first: int) -> None:
        """Where blocks `[at, at + n)` are here already: fill a window's holes, let go of idle copies of live ones."""
        for g in range(len(self._groups)):
            held = node.blocks[g]
            for b in range(at, at + n):
                offered, here = ids[g][b - first], held[b - node.start]
                if offered is not None and offered != here:
                    self._eviction.renew(node, g, b - node.start, offered, self._room())

    def _grow(
        self, domain: PrefixDomain, node: PrefixNode, at: int, tokens: bytes, ids: list[Sequence[int | None]]
    ) -> PrefixCursor | None:
        """Add all blocks at the end of `node`, which is block `at`, or as many as the limit lets in."""
        self._touch(node)
        offered = len(tokens) // self._tree.stride
        sizes = self._eviction.sizes_of(ids, offered)
        self._make_room(sum(sizes))
        if node.is_root:
            node = self._tree.make_root(domain)  # eviction takes away a domain that has become empty
        room, taken = self._room(), 0
        while taken < offered and sizes[taken] <= room:
            room -= sizes[taken]
            taken += 1
        if not node.alive or self._tree.stop(node) != at:  # eviction reached `node` itself
            taken = 0
        self.counters.rejects += taken < offered
        if taken:
            run = tokens[: taken * self._tree.stride]
            node = self._eviction.add(node, run, [list(group_ids[:taken]) for group_ids in ids])
            self._touch(node)
        if node.is_root:
            self._tree.remove_root(node)
            return None
        return PrefixCursor(node, at + taken, node.num_cuts)


def _check_limit(limit_bytes: int | None) -> None:
    if limit_bytes is not None and limit_bytes < 0:
        raise InvalidArgument(f"the prefix cache's limit is {limit_bytes} bytes; it must be at least 0")
