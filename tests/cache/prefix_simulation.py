"""A stand-in for storage under shared blocks: every row remembers which tokens it was computed from."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, blake2b_128
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import BlockCopy, FreshBlocks, StorageKind

SIZE = 16
KINDS = {"full": None, "sliding": 20, "chunked": 24}
Row = tuple[int, int]  # what was computed, and how far its key was rotated back


@dataclass(frozen=True)
class RingCopy:
    """What storage kept in a slot of a sequence whose tokens had this digest."""

    digest: int
    num_bytes: int = 1


@dataclass
class Script:
    """One sequence's tokens, and per position a digest of all up to it: what its row must have been computed from."""

    salt: str
    tokens: list[int]
    digests: list[int] = field(default_factory=list)
    rope_offset: int = 0
    unrotated: bool = False  # a shift has happened, and storage has not rotated yet
    table: list[dict[int, int]] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)  # serials, also of a step that failed

    def digest(self, position: int) -> int:
        while len(self.digests) <= position:
            before = self.digests[-1] if self.digests else hash(self.salt)
            self.digests.append(hash((before, self.tokens[len(self.digests)])))
        return self.digests[position]

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        del self.digests[length:]


class Storage:
    """Rows by (group, block, offset). Learns tables from `FreshBlocks` alone, as a planner must."""

    def __init__(self, pool: CachePool) -> None:
        self._pool = pool
        self.rows: dict[tuple[int, int, int], Row] = {}
        self._size = pool.block_size

    def run(
        self, handle: SequenceHandle, script: Script, start: int, stop: int, fresh: Sequence[FreshBlocks]
    ) -> list[BlockCopy]:
        """Make the sequence's copies, write positions `[start, stop)`, and check all rows that these see."""
        copies = list(self._pool.copies(handle))
        for copy in copies:
            if copy.serial in script.copied:
                continue
            script.copied.add(copy.serial)
            for offset in range(self._size):
                row = self.rows.get((copy.group, copy.source, offset))
                if row is not None:
                    self.rows[copy.group, copy.target, offset] = row
        for f in fresh:
            script.table[f.group].update(enumerate(f.block_ids, f.first))
        state = self._pool.sequence(handle)
        if script.unrotated:
            for g, table in enumerate(state.tables):
                for position in range(table.live_start, start):
                    where = self._where(script, g, position)
                    self.rows[where] = (self.rows[where][0], script.rope_offset)
            script.unrotated = False
        groups = [g for g, group in enumerate(self._pool.groups) if group.takes_blocks(state.storage)]
        for g in groups:
            for position in range(start, stop):
                self.rows[self._where(script, g, position)] = (script.digest(position), script.rope_offset)
        for g in groups:
            first = state.first_visible(self._pool.groups[g], start)
            assert state.tables[g].live_start <= first, "a position that the next token sees is hidden"
            for position in (*range(min(state.keep, stop)), *range(first, stop)):
                rope = 0 if position < state.keep else script.rope_offset
                row = self.rows[self._where(script, g, position)]
                assert row == (script.digest(position), rope), f"group {g} shows another row at {position}"
        return copies

    def _where(self, script: Script, group: int, position: int) -> tuple[int, int, int]:
        return group, script.table[group][position // self._size], position % self._size


def longest_hit(
    pool: CachePool,
    cached: dict[tuple[int, ...], tuple[int | None, ...]],
    tokens: Sequence[int],
    keep: int,
    storage: StorageKind,
    with_snapshot: set[tuple[int, ...]],
) -> int:
    """The length of the best hit, by trying every one. `cached` maps whole prefixes to their last block's ids."""
    size = pool.block_size
    for n in range((len(tokens) - 1) // size, 0, -1):
        blocks = [cached.get(tuple(tokens[: (b + 1) * size])) for b in range(n)]
        if any(ids is None for ids in blocks):
            continue
        if keeps_rings(pool, storage) and tuple(tokens[: n * size]) not in with_snapshot:
            continue
        needed = {
            (b, g)
            for g, group in enumerate(pool.groups)
            if group.takes_blocks(storage)
            for b in range(n)
            if group.spec.window is None or b * size < keep or (b + 1) * size > group.spec.first_visible(n * size)
        }
        if all(blocks[b][g] is not None for b, g in needed):  # type: ignore[index]
            return n * size
    return 0


def keeps_rings(pool: CachePool, storage: StorageKind) -> bool:
    return any(not group.takes_blocks(storage) for group in pool.groups)


def cached_prefixes(
    pool: CachePool, salt: str, with_snapshot: set[tuple[int, ...]] | None = None
) -> dict[tuple[int, ...], tuple[int | None, ...]]:
    """All that the tree holds for one salt, read node by node. Those with a snapshot are added to `with_snapshot`."""
    tree = pool.prefix._tree
    root = tree.root(PrefixDomain(salt=salt))
    found: dict[tuple[int, ...], tuple[int | None, ...]] = {}
    waiting = [(node, ()) for bucket in root.children.values() for node in bucket] if root is not None else []
    while waiting:
        node, before = waiting.pop()
        for b in range(tree.stop(node) - node.start):
            run = memoryview(bytes(node.tokens)).cast("i")[b * pool.block_size : (b + 1) * pool.block_size]
            before = (*before, *run)
            found[before] = tuple([ids[b] for ids in node.blocks])
            if with_snapshot is not None and node.start + b + 1 in node.snapshots:
                with_snapshot.add(before)
        waiting += [(child, before) for bucket in node.children.values() for child in bucket]
    return found


def takes_the_short_way(pool: CachePool, handle: SequenceHandle) -> bool:
    """Whether the next token is appended without a look at all tables; a look at them would then change nothing."""
    state = pool.sequence(handle)
    if state.copies or not pool._holds_next(state):
        return False
    before = pickle.dumps(pool)
    short, long = pickle.loads(before), pickle.loads(before)
    vars(long)["_holds_next"] = lambda state: False
    assert short.append(handle, 1) == long.append(handle, 1) == ()
    del vars(long)["_holds_next"]
    assert pickle.dumps(short) == pickle.dumps(long), "the short way leads elsewhere"
    return True


def same_for_all(data: bytes) -> bytes:
    return b"weak"


def one_byte(data: bytes) -> bytes:
    return blake2b_128(data)[:1]


def make_groups(kinds: tuple[str, ...]) -> tuple[CacheGroup, ...]:
    return tuple(
        CacheGroup(LayerSpec(kind, 4, 2, 64, 64, 0.125, KINDS[kind]), (layer,))  # type: ignore[arg-type]
        for layer, kind in enumerate(kinds)
    )


def tokens_of(choices: list[int], tail: int) -> list[int]:
    """Few different blocks in any order, so that prompts often share their beginnings; the tail cuts the last."""
    tokens = [choice * 100 + i for choice in choices for i in range(SIZE)]
    return tokens[: max(1, len(tokens) - tail)]
