"""Slots, handles and block tables of live sequences, each growing, trimmed and ended by itself. Torch-free.

Owns which block holds which token; `CachePool` adds how sequences begin with, share and leave each other's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.block_supply import BlockSupply
from octavo.cache.index_set import IndexSet
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.prefix_types import PrefixOptions
from octavo.cache.refusals import BlocksExhausted, DuplicateSequence, InvalidArgument, SlotsExhausted, StaleHandle
from octavo.cache.sequence import GroupTable, PendingCopy, SequenceHandle, SequenceState
from octavo.cache.spec import CacheGroup
from octavo.step_batch import BlockCopy, FreshBlocks, StorageKind


class SequencePool:
    """Sequences in `max_seqs` slots, lowest free slot first.

    Transactional like `BlockPool`, over all groups at once: a refused call leaves everything as it was. `append`
    counts tokens as written before the forward pass writes them; `rollback_append` takes that back if it fails.
    A dense sequence takes a contiguous run for its whole `max_tokens` in every unbounded group at allocation, and
    nothing in bounded groups (storage keeps a ring per slot); a paged one takes blocks as it grows, in every group
    but recurrent ones. Used by one thread.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        block_size: int,
        num_blocks: Sequence[int],
        max_seqs: int,
        max_append_tokens: int | None = None,
        prefix: PrefixOptions | None = None,
    ) -> None:
        """`num_blocks` is per group. `max_append_tokens` bounds one append (None: no bound); it bounds in turn what
        a paged sequence can hold of a sliding window, and so what admission must set aside.

        Raises `InvalidArgument` if an argument is out of range.
        """
        if not groups or len(groups) != len(num_blocks):
            raise InvalidArgument(f"{len(groups)} groups are given {len(num_blocks)} block counts; give one each")
        if max_seqs < 1:
            raise InvalidArgument(f"max_seqs is {max_seqs}; it must be at least 1")
        if max_append_tokens is not None and max_append_tokens < 1:
            raise InvalidArgument(f"max_append_tokens is {max_append_tokens}; it must be at least 1")
        self.groups = tuple(groups)
        self.block_size = block_size
        self.max_seqs = max_seqs
        self.max_append_tokens = max_append_tokens
        self.pools = tuple(BlockPool(n, block_size) for n in num_blocks)
        self.prefix = PrefixCache(groups, block_size, self.pools, prefix or PrefixOptions())
        self._supply = BlockSupply(self.pools, self.prefix)
        self._paged_groups = [i for i, group in enumerate(self.groups) if group.takes_blocks(StorageKind.PAGED)]
        self.has_windows = any(group.spec.window is not None for group in self.groups)
        self._free_slots = IndexSet(max_seqs)
        self._generations = [0] * max_seqs
        self._slots: list[SequenceState | None] = [None] * max_seqs
        self._seq_ids: set[str] = set()
        self._num_copies = 0  # ever

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def num_seqs(self) -> int:
        return len(self._seq_ids)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def sequence(self, handle: SequenceHandle) -> SequenceState:
        """The live state behind `handle`; the caller only reads it. Raises `StaleHandle`."""
        slot = handle.slot
        state = self._slots[slot] if 0 <= slot < self.max_seqs else None
        if state is None or (state.handle is not handle and state.handle != handle):
            raise StaleHandle(f"slot {slot}, generation {handle.generation} is no longer live; allocate a new sequence")
        return state

    def sequences(self) -> list[SequenceState]:
        """All that are live, by slot; the caller only reads them."""
        return [state for state in self._slots if state is not None]

    def written(self, handle: SequenceHandle) -> int:
        return self.sequence(handle).written

    def live_start(self, handle: SequenceHandle) -> tuple[int, ...]:
        """Per group, the first position still visible after the kept ones."""
        return self.sequence(handle).live_start

    def table(self, handle: SequenceHandle, group: int) -> tuple[int | None, ...]:
        """Block ids of `group` by absolute block, None where there is a hole; spare blocks included."""
        return tuple(self.sequence(handle).tables[group].block_ids)

    def copies(self, handle: SequenceHandle) -> tuple[BlockCopy, ...]:
        """What storage must copy before the tokens of the last append are written. Raises `StaleHandle`."""
        return tuple([pending.copy for pending in self.sequence(handle).copies])

    def blocks_needed(self, tokens: int, storage: StorageKind, keep: int = 0) -> tuple[int, ...]:
        """Per group, the most blocks that a sequence growing to `tokens` tokens ever holds at once."""
        return tuple(
            [g.max_blocks(storage, tokens, self.block_size, self.max_append_tokens, keep) for g in self.groups]
        )

    # -- life of a sequence -------------------------------------------------------------------------------------

    def append(self, handle: SequenceHandle, n: int) -> tuple[FreshBlocks, ...]:
        """Count `n` more tokens as written; returns the blocks that the planner has not been told of.

        If others hold the block that the first of them goes into, a fresh one takes its place here, and `copies`
        says what to copy. Raises `StaleHandle`, `BlocksExhausted`, or `InvalidArgument` beyond what was promised
        or `max_append_tokens`.
        """
        state = self.sequence(handle)
        if n == 1 and not state.copies and self._holds_next(state):
            state.written += 1
            return ()
        stop = self._grow(state, n)
        if state.copies:
            unmade = state.unmade_copies
            self._end_copies([pending for pending in state.copies if pending not in unmade])
            state.copies = unmade
            for pending in unmade:
                table = state.tables[pending.copy.group]
                table.num_announced = min(table.num_announced, pending.index)
        state.written = stop
        return self._announce(state)

    def rollback_append(self, handle: SequenceHandle, n: int) -> None:
        """Take back the last `n` appended tokens. Their blocks stay with the sequence: a retry gets the same rows.

        Raises `StaleHandle`, or `InvalidArgument` if what the rewound sequence needs was trimmed since.
        """
        state = self.sequence(handle)
        state.rewind(self.groups, self._checked_rewind(state, n), self.block_size)

    def promise(self, handle: SequenceHandle, tokens: int) -> None:
        """Set aside blocks for `tokens` tokens in all, or to the end of the last of these blocks; never fewer than now.

        Takes none, and does not ask whether as many are available: that is for `growth` to tell. Raises
        `StaleHandle`, or `InvalidArgument` beyond `max_tokens`.
        """
        state = self.sequence(handle)
        if tokens > state.max_tokens:
            raise InvalidArgument(f"{tokens} tokens are to be promised to a sequence of at most {state.max_tokens}")
        if tokens > state.promised:
            state.promised = self._whole_blocks(tokens, state.max_tokens)
            state.promised_blocks = self.blocks_needed(state.promised, state.storage, state.keep)

    def reserve(self, handle: SequenceHandle, n: int) -> None:
        """Take the blocks for `n` more tokens without counting these as written. Raises as `append` does."""
        self._grow(self.sequence(handle), n)

    def trim_tail(self, handle: SequenceHandle, n: int) -> None:
        """Drop the last `n` tokens and every block past the new end, spare ones too; a dense run stays whole.

        Blocks that are to be written again leave the prefix cache: whoever began with one would make the next token
        here take another block, of which nobody was told. A block that others hold already does not become free, and
        the sequence may claim another in its place: see that as many are available. The same holds for `reset`.

        Raises `StaleHandle`, or `InvalidArgument` if what the rewound sequence needs was trimmed since.
        """
        state = self.sequence(handle)
        written = self._checked_rewind(state, n)
        state.rewind(self.groups, written, self.block_size)
        num_blocks = -(-written // self.block_size)
        for g, (table, pool) in enumerate(zip(state.tables, self.pools, strict=True)):
            self._drop_copies(state, g, num_blocks, len(table.block_ids))
            if state.storage is StorageKind.PAGED:
                pool.release(table.ids(num_blocks, len(table.block_ids)))
                del table.block_ids[num_blocks:]
            opened = table.ids(written // self.block_size, len(table.block_ids))
            self.prefix.forget_all(g, [block_id for block_id in opened if pool.is_cached(block_id)])

    def trim_front(self, handle: SequenceHandle, group: int, live_start: int) -> tuple[int, ...]:
        """Move a paged window's first visible position up to `live_start`; returns the block ids this freed.

        Whole blocks left of it go, except those that hold the sequence's `keep` front tokens. Raises `StaleHandle`,
        or `InvalidArgument` if the group keeps no window in blocks, or `live_start` would move back or past what the
        next token needs.
        """
        state = self.sequence(handle)
        if not 0 <= group < len(self.groups):
            raise InvalidArgument(f"group is {group}; the pool has groups 0 to {len(self.groups) - 1}")
        spec, table = self.groups[group].spec, state.tables[group]
        if spec.window is None or state.storage is not StorageKind.PAGED:
            raise InvalidArgument(f"group {group} ({spec.kind}, {state.storage.value}) keeps no window in blocks")
        needed = spec.first_visible(state.written)
        floor = state.keep + state.rope_offset
        target = max(floor, live_start)
        if not table.live_start <= target <= max(floor, needed):
            raise InvalidArgument(
                f"live_start {live_start} is outside [{table.live_start}, {needed}]: "
                "it never moves back, nor past what the next token needs"
            )
        return self._drop_front(state, group, target)

    def release(self, handle: SequenceHandle) -> None:
        """End the sequence: all its blocks and its slot are free at once. Raises `StaleHandle`."""
        state = self.sequence(handle)
        self._end_copies(state.copies)
        self._release_tables(state.tables)
        self._close(state)
        self.prefix.enforce_limit()

    def reset(self, handle: SequenceHandle) -> SequenceHandle:
        """Empty the sequence in place, under a new generation; a dense one keeps its run. Raises `StaleHandle`."""
        state = self.sequence(handle)
        self._end_copies(state.copies)
        state.copies = []
        if state.storage is StorageKind.PAGED:
            self._release_tables(state.tables)
            state.tables = self._empty_tables(state.keep)
        for g, table in enumerate(state.tables):
            table.num_announced = 0
            for block_id in table.ids(0, len(table.block_ids)):  # a dense run is about to be written anew
                if self.pools[g].is_cached(block_id):
                    self.prefix.forget(g, block_id)
        state.written = state.rope_offset = state.adopted = 0
        state.cursor = None
        state.handle = self._next_handle(handle.slot)
        return state.handle

    # -- helpers; those that can refuse run before anything is changed ------------------------------------------

    def _whole_blocks(self, tokens: int, max_tokens: int) -> int:
        return min(max_tokens, -(-tokens // self.block_size) * self.block_size)

    def _check_opening(self, seq_id: str) -> None:
        if seq_id in self._seq_ids:
            raise DuplicateSequence(f"sequence {seq_id!r} is live already; release it first")
        if not self._free_slots:
            raise SlotsExhausted(f"all {self.max_seqs} sequence slots are taken; wait for one or raise max_num_seqs")

    def _open(
        self,
        seq_id: str,
        storage: StorageKind,
        max_tokens: int,
        keep: int,
        tables: tuple[GroupTable, ...],
        promised: int | None = None,
    ) -> SequenceState:
        slot = self._free_slots.pop_lowest()
        promised = self._whole_blocks(max_tokens if promised is None else promised, max_tokens)
        blocks = self.blocks_needed(promised, storage, keep)
        state = SequenceState(seq_id, self._next_handle(slot), storage, max_tokens, keep, tables, promised, blocks)
        self._slots[slot] = state
        self._seq_ids.add(seq_id)
        return state

    def _close(self, state: SequenceState) -> None:
        self._slots[state.handle.slot] = None
        self._free_slots.add((state.handle.slot,))
        self._seq_ids.remove(state.seq_id)

    def _holds_next(self, state: SequenceState) -> bool:
        """Whether the next token goes into blocks of its own that the planner knows: as most tokens do."""
        tail, filled = divmod(state.written, self.block_size)
        if not filled or state.storage is StorageKind.DENSE or state.written >= state.promised + state.rope_offset:
            return False
        for g in self._paged_groups:
            table = state.tables[g]
            if table.num_announced <= tail or self.pools[g].is_shared(table.block_ids[tail]):  # type: ignore[arg-type]
                return False
        return True

    def _grow(self, state: SequenceState, n: int) -> int:
        """Extend the tables to hold `n` more tokens, in all groups or none; returns the new end.

        A block that tokens are in already and others hold too is replaced. Where only the prefix cache holds it and
        there is no block to replace it by, the cache gives it up instead.
        """
        stop = state.written + n
        if (
            n < 1
            or stop - state.rope_offset > state.promised
            or (self.max_append_tokens is not None and n > self.max_append_tokens)
        ):
            raise InvalidArgument(
                f"cannot append {n} tokens to {state.rope_position} of at most {state.promised}; "
                f"one append takes from 1 to {self.max_append_tokens or state.promised} tokens"
            )
        if state.storage is StorageKind.DENSE:
            self._own_dense_tail(state)
            return stop
        num_blocks = -(-stop // self.block_size)
        tail, filled = divmod(state.written, self.block_size)
        missing, shared, evicts = [], [], False
        for g in self._paged_groups:
            pool, ids = self.pools[g], state.tables[g].block_ids
            short = num_blocks - len(ids)
            if short > 0:
                missing.append((ids, pool, short))
                evicts = evicts or short > pool.num_free
            if filled and pool.is_shared(ids[tail]):  # type: ignore[arg-type]  # never a hole
                shared.append(g)
        if shared or evicts:
            self._grow_among_others(state, tail, num_blocks, shared)
        else:
            for ids, pool, short in missing:
                ids += pool.allocate(short)
        return stop

    def _grow_among_others(self, state: SequenceState, tail: int, num_blocks: int, shared: list[int]) -> None:
        """Extend tables where blocks must be evicted or, in groups `shared`, block `tail` must not be written."""
        wanted = [0] * len(self.groups)
        for g in self._paged_groups:
            wanted[g] = max(0, num_blocks - len(state.tables[g].block_ids))
        for g in shared:
            wanted[g] += 1
        taken = self._supply.take(state.seq_id, wanted)
        for g in shared:
            self._replace(state, g, tail, taken[g][0])
            taken[g] = taken[g][1:]
        for g in self._paged_groups:
            state.tables[g].block_ids.extend(taken[g])

    def _own_dense_tail(self, state: SequenceState) -> None:
        for g, pool in enumerate(self.pools):
            tail = state.tail_block(g, self.block_size)
            if tail is not None and pool.is_shared(tail):
                raise BlocksExhausted(
                    f"block {tail} of dense sequence {state.seq_id!r} is still to be copied for another sequence and "
                    "cannot be written; run that one's step first"
                )

    def _replace(self, state: SequenceState, group: int, index: int, target: int) -> None:
        """Put `target` in place of a block that others hold too, to be copied from it before it is written."""
        table = state.tables[group]
        source = table.block_ids[index]
        assert source is not None, "only a held block is replaced"
        table.block_ids[index] = target
        state.copies.append(PendingCopy(self._block_copy(group, source, target), index, state.written))

    def _block_copy(self, group: int, source: int, target: int) -> BlockCopy:
        self._num_copies += 1
        return BlockCopy(group, source, target, self._num_copies)

    def _announce(self, state: SequenceState) -> tuple[FreshBlocks, ...]:
        num_blocks = -(-state.written // self.block_size)
        whole = state.storage is StorageKind.DENSE  # a dense run is announced whole
        fresh: list[FreshBlocks] = []
        for g, table in enumerate(state.tables):
            stop = len(table.block_ids)
            if stop > num_blocks and not whole:
                stop = num_blocks
            if stop > table.num_announced:
                fresh += table.announce(g, stop)
        return tuple(fresh)

    def _checked_rewind(self, state: SequenceState, n: int) -> int:
        written = state.written - n
        if not 0 <= n <= state.written:
            raise InvalidArgument(f"cannot take back {n} tokens of {state.written}")
        for i, group in enumerate(self.groups):
            if not state.can_rewind(i, group, written, self.block_size):
                raise InvalidArgument(
                    f"cannot take back {n} tokens of {state.written}: group {i} no longer holds the window before them"
                )
        return written

    def _drop_front(self, state: SequenceState, group: int, live_start: int) -> tuple[int, ...]:
        table = state.tables[group]
        first = table.hole_stop
        dropped = table.drop_front(live_start, self.block_size)
        self._drop_copies(state, group, first, table.hole_stop)
        return self.pools[group].release(dropped)

    def _drop_copies(self, state: SequenceState, group: int, first: int, stop: int) -> None:
        """Forget copies into absolute blocks `[first, stop)` of a group: these blocks go."""
        gone = [p for p in state.copies if p.copy.group == group and first <= p.index < stop]
        if gone:
            state.copies = [pending for pending in state.copies if pending not in gone]
            self._end_copies(gone)

    def _end_copies(self, ended: Sequence[PendingCopy]) -> None:
        for pending in ended:
            self.pools[pending.copy.group].release((pending.copy.source,))

    def _empty_tables(self, keep: int) -> tuple[GroupTable, ...]:
        kept = -(-keep // self.block_size)
        return tuple([GroupTable([], keep, kept, kept) for _ in self.groups])

    def _next_handle(self, slot: int) -> SequenceHandle:
        self._generations[slot] += 1
        return SequenceHandle(slot, self._generations[slot])

    def _release_tables(self, tables: tuple[GroupTable, ...]) -> None:
        for table, pool in zip(tables, self.pools, strict=True):
            pool.release(table.ids(0, len(table.block_ids)))
