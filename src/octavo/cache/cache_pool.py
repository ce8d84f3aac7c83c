"""Slots, handles and block tables of all live sequences, over one `BlockPool` per group. Torch-free.

Owns every decision about which block holds which token; owns no memory, and no queue of those who wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.index_set import IndexSet
from octavo.cache.refusals import (
    BlocksExhausted,
    DuplicateSequence,
    InvalidArgument,
    SlotsExhausted,
    StaleHandle,
)
from octavo.cache.sequence import GroupTable, SequenceHandle, SequenceState
from octavo.cache.spec import CacheGroup
from octavo.step_batch import FreshBlocks, StorageKind


class CachePool:
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
        self._paged_groups = [i for i, group in enumerate(self.groups) if group.takes_blocks(StorageKind.PAGED)]
        self._free_slots = IndexSet(max_seqs)
        self._generations = [0] * max_seqs
        self._slots: list[SequenceState | None] = [None] * max_seqs
        self._seq_ids: set[str] = set()

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def num_seqs(self) -> int:
        return len(self._seq_ids)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """Free blocks per group."""
        return tuple([pool.num_free for pool in self.pools])

    def longest_runs(self) -> tuple[int, ...]:
        """Blocks in the longest contiguous free run, per group. Reads every block."""
        return tuple([pool.longest_run() for pool in self.pools])

    def sequence(self, handle: SequenceHandle) -> SequenceState:
        """The live state behind `handle`; the caller only reads it. Raises `StaleHandle`."""
        slot = handle.slot
        state = self._slots[slot] if 0 <= slot < self.max_seqs else None
        if state is None or state.handle != handle:
            raise StaleHandle(f"slot {slot}, generation {handle.generation} is no longer live; allocate a new sequence")
        return state

    def written(self, handle: SequenceHandle) -> int:
        return self.sequence(handle).written

    def live_start(self, handle: SequenceHandle) -> tuple[int, ...]:
        """Per group, the first position still visible after the kept ones."""
        return tuple([table.live_start for table in self.sequence(handle).tables])

    def table(self, handle: SequenceHandle, group: int) -> tuple[int | None, ...]:
        """Block ids of `group` by absolute block, None where a front trim freed one; spare blocks included."""
        return tuple(self.sequence(handle).tables[group].block_ids)

    # -- admission arithmetic -----------------------------------------------------------------------------------

    def blocks_needed(self, tokens: int, storage: StorageKind, keep: int = 0) -> tuple[int, ...]:
        """Per group, the most blocks that a sequence growing to `tokens` tokens ever holds at once."""
        return tuple(
            [g.max_blocks(storage, tokens, self.block_size, self.max_append_tokens, keep) for g in self.groups]
        )

    def fits_ever(self, tokens: int, storage: StorageKind) -> bool:
        """True if a sequence of `tokens` tokens fits the pool when nothing else is in it."""
        needed = self.blocks_needed(tokens, storage)
        return all(n <= pool.num_blocks for n, pool in zip(needed, self.pools, strict=True))

    def largest_fit(self, storage: StorageKind) -> int | None:
        """Most tokens that one sequence can ever have here; None if no group limits its length."""
        limits = [
            pool.num_blocks * self.block_size
            for group, pool in zip(self.groups, self.pools, strict=True)
            if group.takes_blocks(storage) and not self._window_always_fits(group, pool, storage)
        ]
        return min(limits, default=None)

    def available_blocks(self) -> tuple[int, ...]:
        """Per group, free blocks less those that live sequences may still take up to their `max_tokens`."""
        available = [pool.num_free for pool in self.pools]
        for state in self._slots:
            if state is not None and state.storage is StorageKind.PAGED:
                for i, needed in enumerate(self.blocks_needed(state.max_tokens, state.storage, state.keep)):
                    available[i] -= max(0, needed - state.tables[i].num_held)
        return tuple(available)

    def can_allocate(self, storage: StorageKind, max_tokens: int) -> bool:
        """True if a slot is free and a new sequence can grow to `max_tokens` without taking what others may claim."""
        needed = self.blocks_needed(max_tokens, storage)
        rooms = [self.available_blocks()] + ([self.longest_runs()] if storage is StorageKind.DENSE else [])
        return len(self._free_slots) > 0 and all(
            n <= room for per_group in rooms for n, room in zip(needed, per_group, strict=True)
        )

    # -- life of a sequence -------------------------------------------------------------------------------------

    def allocate(self, seq_id: str, storage: StorageKind, max_tokens: int, keep: int = 0) -> SequenceHandle:
        """Give `seq_id` a slot, and a dense sequence its runs. `keep` tokens at the front will outlive front trims.

        Raises `DuplicateSequence`, `SlotsExhausted`, `BlocksExhausted` (dense) or `InvalidArgument`.
        """
        if max_tokens < 1 or not 0 <= keep <= max_tokens:
            raise InvalidArgument(f"max_tokens is {max_tokens} and keep {keep}; 0 <= keep <= max_tokens must hold")
        if seq_id in self._seq_ids:
            raise DuplicateSequence(f"sequence {seq_id!r} is live already; release it first")
        if not self._free_slots:
            raise SlotsExhausted(f"all {self.max_seqs} sequence slots are taken; wait for one or raise max_num_seqs")
        tables = self._dense_tables(max_tokens, keep) if storage is StorageKind.DENSE else self._empty_tables(keep)
        slot = self._free_slots.pop_lowest()
        handle = self._next_handle(slot)
        self._slots[slot] = SequenceState(seq_id, handle, storage, max_tokens, keep, tables)
        self._seq_ids.add(seq_id)
        return handle

    def append(self, handle: SequenceHandle, n: int) -> tuple[FreshBlocks, ...]:
        """Count `n` more tokens as written; returns the blocks that the planner has not been told of.

        Raises `StaleHandle`, `BlocksExhausted`, or `InvalidArgument` beyond `max_tokens` or `max_append_tokens`.
        """
        state = self.sequence(handle)
        stop = self._grow(state, n)
        state.written = stop
        return self._announce(state)

    def rollback_append(self, handle: SequenceHandle, n: int) -> None:
        """Take back the last `n` appended tokens. Their blocks stay with the sequence: a retry gets the same rows.

        Raises `StaleHandle`, or `InvalidArgument` if what the rewound sequence needs was trimmed since.
        """
        state = self.sequence(handle)
        state.rewind(self.groups, self._checked_rewind(state, n), self.block_size)

    def reserve(self, handle: SequenceHandle, n: int) -> None:
        """Take the blocks for `n` more tokens without counting these as written. Raises as `append` does."""
        self._grow(self.sequence(handle), n)

    def trim_tail(self, handle: SequenceHandle, n: int) -> None:
        """Drop the last `n` tokens and every block past the new end, spare ones too; a dense run stays whole.

        Raises `StaleHandle`, or `InvalidArgument` if what the rewound sequence needs was trimmed since.
        """
        state = self.sequence(handle)
        written = self._checked_rewind(state, n)
        state.rewind(self.groups, written, self.block_size)
        if state.storage is StorageKind.PAGED:
            num_blocks = -(-written // self.block_size)
            for table, pool in zip(state.tables, self.pools, strict=True):
                pool.release(table.ids(num_blocks, len(table.block_ids)))
                del table.block_ids[num_blocks:]

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
        target = max(state.keep, live_start)
        if not table.live_start <= target <= max(state.keep, needed):
            raise InvalidArgument(
                f"live_start {live_start} is outside [{table.live_start}, {needed}]: "
                "it never moves back, nor past what the next token needs"
            )
        table.live_start = target
        stop = max(table.hole_stop, target // self.block_size)
        dropped = table.ids(table.hole_stop, stop)
        table.block_ids[table.hole_stop : stop] = [None] * (stop - table.hole_stop)
        table.hole_stop = stop
        return self.pools[group].release(dropped)

    def release(self, handle: SequenceHandle) -> None:
        """End the sequence: all its blocks and its slot are free at once. Raises `StaleHandle`."""
        state = self.sequence(handle)
        self._release_blocks(state)
        self._slots[handle.slot] = None
        self._free_slots.add((handle.slot,))
        self._seq_ids.remove(state.seq_id)

    def reset(self, handle: SequenceHandle) -> SequenceHandle:
        """Empty the sequence in place, under a new generation; a dense one keeps its run. Raises `StaleHandle`."""
        state = self.sequence(handle)
        if state.storage is StorageKind.PAGED:
            self._release_blocks(state)
            state.tables = self._empty_tables(state.keep)
        for table in state.tables:
            table.num_announced = 0
        state.written = state.rope_offset = 0
        state.handle = self._next_handle(handle.slot)
        return state.handle

    def check_integrity(self) -> None:
        """Assert that pools, slots and tables agree. Reads every block; meant for whenever nothing runs."""
        for pool in self.pools:
            pool.check_integrity()
        live = [state for state in self._slots if state is not None]
        assert len(live) == len(self._seq_ids) == self.max_seqs - len(self._free_slots), "slots and sequences disagree"
        for i, pool in enumerate(self.pools):
            held = [block_id for state in live for block_id in state.tables[i].block_ids if block_id is not None]
            assert len(held) == sum(state.tables[i].num_held for state in live), "a table miscounts its blocks"
            assert all(pool.refcount(block_id) for block_id in held), "a table names a free block"
            assert live or not pool.num_live, "blocks are live although no sequence is"

    # -- helpers; those that can refuse run before anything is changed ------------------------------------------

    def _grow(self, state: SequenceState, n: int) -> int:
        """Extend the tables to hold `n` more tokens, in all groups or none; returns the new end."""
        stop = state.written + n
        if n < 1 or stop > state.max_tokens or (self.max_append_tokens is not None and n > self.max_append_tokens):
            raise InvalidArgument(
                f"cannot append {n} tokens to {state.written} of at most {state.max_tokens}; "
                f"one append takes from 1 to {self.max_append_tokens or state.max_tokens} tokens"
            )
        if state.storage is StorageKind.DENSE:
            return stop
        num_blocks = -(-stop // self.block_size)
        missing = []
        for i in self._paged_groups:
            short = num_blocks - len(state.tables[i].block_ids)
            if short > 0:
                if short > self.pools[i].num_free:
                    raise BlocksExhausted(
                        f"sequence {state.seq_id!r} needs {short} more blocks in group {i}; "
                        f"{self.pools[i].num_free} of {self.pools[i].num_blocks} are free; wait for a sequence to end"
                    )
                missing.append((i, short))
        for i, short in missing:
            state.tables[i].block_ids.extend(self.pools[i].allocate(short))
        return stop

    def _announce(self, state: SequenceState) -> tuple[FreshBlocks, ...]:
        num_blocks = -(-state.written // self.block_size)
        fresh = []
        for i, table in enumerate(state.tables):
            stop = len(table.block_ids)  # a dense run is announced whole
            if state.storage is StorageKind.PAGED:
                stop = min(stop, num_blocks)
            if stop > table.num_announced:
                fresh.append(FreshBlocks(i, table.num_announced, table.ids(table.num_announced, stop)))
                table.num_announced = stop
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

    def _dense_tables(self, max_tokens: int, keep: int) -> tuple[GroupTable, ...]:
        tables = self._empty_tables(keep)
        needed = self.blocks_needed(max_tokens, StorageKind.DENSE)
        taken: list[tuple[BlockPool, tuple[int, ...]]] = []
        try:
            for table, pool, n in zip(tables, self.pools, needed, strict=True):
                run = pool.allocate_run(n)
                taken.append((pool, run))
                table.block_ids.extend(run)
        except BlocksExhausted:
            for pool, run in taken:
                pool.release(run)
            raise
        return tables

    def _empty_tables(self, keep: int) -> tuple[GroupTable, ...]:
        kept = -(-keep // self.block_size)
        return tuple([GroupTable([], keep, kept, kept) for _ in self.groups])

    def _next_handle(self, slot: int) -> SequenceHandle:
        self._generations[slot] += 1
        return SequenceHandle(slot, self._generations[slot])

    def _release_blocks(self, state: SequenceState) -> None:
        for table, pool in zip(state.tables, self.pools, strict=True):
            pool.release(table.ids(0, len(table.block_ids)))

    def _window_always_fits(self, group: CacheGroup, pool: BlockPool, storage: StorageKind) -> bool:
        if group.spec.window is None or self.max_append_tokens is None:
            return False
        huge = pool.num_blocks * self.block_size + 1
        return group.max_blocks(storage, huge, self.block_size, self.max_append_tokens) <= pool.num_blocks
