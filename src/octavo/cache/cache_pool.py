"""How sequences begin with, share, leave and take over each other's blocks. Torch-free.

Owns those decisions; owns no memory, and no queue of those who wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.cache.parked import ParkedSequence
from octavo.cache.prefix_types import PrefixHit, PrefixOptions, Snapshot, encode_tokens
from octavo.cache.refusals import BlocksExhausted, InvalidArgument, StaleHandle
from octavo.cache.run_pool import RunPool
from octavo.cache.sequence import GroupTable, PendingCopy, SequenceHandle, SequenceState
from octavo.cache.spec import CacheGroup
from octavo.step_batch import StorageKind


class CachePool(RunPool):
    """A `RunPool` whose sequences share what they have in common.

    A borrowed block is never written: `append` replaces it first and names the copy to make. Whatever the prefix
    cache alone holds counts as available, for it is evicted on demand. Used by one thread.
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
        """As `SequencePool`."""
        super().__init__(groups, block_size, num_blocks, max_seqs, max_append_tokens, prefix)
        self._parked: dict[int, ParkedSequence] = {}
        self._num_parked = 0  # ever

    def parked_sequences(self) -> list[ParkedSequence]:
        """All that are parked now."""
        return list(self._parked.values())

    # -- room to share -----------------------------------------------------------------------------------

    def can_adopt(self, parked: ParkedSequence, max_tokens: int | None = None) -> bool:
        """As `can_allocate`, for `adopt`. Raises `StaleHandle`."""
        self._check_parked(parked)
        needed = self._blocks_to_clone(parked, max_tokens or parked.max_tokens)
        return len(self._free_slots) > 0 and self._fit(parked.storage, needed)

    def can_fork(self, handle: SequenceHandle) -> bool:
        """As `can_allocate`, for `fork`. Raises `StaleHandle`."""
        state = self.sequence(handle)
        needed = list(self._blocks_to_clone(self._view(state), state.max_tokens))
        for g in self._paged_groups:  # from then on the parent shares its blocks too
            if self.groups[g].spec.window is not None:
                needed[g] += self._num_private(state, g)
            elif state.tail_block(g, self.block_size) is not None:
                needed[g] += not self._shares_tail(state, g)
        return len(self._free_slots) > 0 and self._fit(state.storage, tuple(needed))

    # -- beginning ----------------------------------------------------------------------------------------------

    def allocate(
        self,
        seq_id: str,
        storage: StorageKind,
        max_tokens: int,
        keep: int = 0,
        prefix: PrefixHit | None = None,
        promised: int | None = None,
    ) -> SequenceHandle:
        """Give `seq_id` a slot, and a dense sequence its runs. `keep` tokens at the front will outlive front trims.

        A paged sequence has a right to blocks for `promised` tokens (None: for `max_tokens`), and `promise` for more.

        With `prefix`, what the prefix cache had for it, the sequence begins with `prefix.num_tokens` written: in the
        cached blocks themselves, or where these make no beginning of a dense run, in copies of them. What it keeps in
        rings is the caller's to restore from `prefix.snapshot`. It may then also `donate`. Raises
        `DuplicateSequence`, `SlotsExhausted`, `BlocksExhausted` (dense) or `InvalidArgument`, also for a prefix of
        which something was evicted since.
        """
        if max_tokens < 1 or not 0 <= keep <= max_tokens:
            raise InvalidArgument(f"max_tokens is {max_tokens} and keep {keep}; 0 <= keep <= max_tokens must hold")
        self._check_opening(seq_id)
        tables = self._empty_tables(keep)
        copies: list[PendingCopy] = []
        if prefix is not None:
            self._check_hit(prefix, storage, max_tokens, keep)
            tables = self._borrowed_tables(prefix)
        if storage is StorageKind.PAGED:
            self._retain(tables)
        else:
            begins = [table.ids(0, len(table.block_ids)) for table in tables]
            tables, copies = self._dense_tables(max_tokens, keep, begins, prefix.num_tokens if prefix else 0, True)
        promised = None if storage is StorageKind.DENSE else promised
        state = self._open(seq_id, storage, max_tokens, keep, tables, promised)
        state.copies = copies
        if prefix is not None:
            state.written = state.adopted = prefix.num_tokens
            state.domain = prefix.domain
            self.prefix.use(prefix)
        return state.handle

    def fork(self, handle: SequenceHandle, seq_id: str) -> SequenceHandle:
        """A second sequence with all that the first has written, sharing its blocks, the unfilled one too.

        Raises as `adopt`.
        """
        state = self.sequence(handle)
        self._check_made(state)
        self._check_no_slot_state(state.storage, None)
        return self._clone(self._view(state), seq_id, state.max_tokens)

    # -- parking ------------------------------------------------------------------------------------------------

    def detach(self, handle: SequenceHandle, snapshot: Snapshot | None = None) -> ParkedSequence:
        """Take a sequence out of its slot and keep its blocks, spare ones excepted.

        Raises `StaleHandle`, or `InvalidArgument` while copies for it are unmade, or if storage keeps something of it
        outside of blocks and no `snapshot` of that is given.
        """
        state = self.sequence(handle)
        self._check_made(state)
        self._check_no_slot_state(state.storage, snapshot)
        self._end_copies(state.copies)
        parked = self._park(ParkedSequence.of(self._num_parked, state, self._num_written_blocks(state), snapshot))
        if state.storage is StorageKind.PAGED:
            for table, pool in zip(state.tables, self.pools, strict=True):
                pool.release(table.ids(self._num_written_blocks(state), len(table.block_ids)))
        self._close(state)
        return parked

    def pin(self, hit: PrefixHit) -> ParkedSequence:
        """Keep a cached prefix from being evicted until it is dropped; it can be adopted like any parked sequence.

        Raises `InvalidArgument` for a hit of nothing, a dense or a stale one, `BlocksExhausted` if running sequences
        may need its blocks.
        """
        if not hit.num_tokens or hit.storage is not StorageKind.PAGED:
            raise InvalidArgument(f"a {hit.storage.value} hit of {hit.num_tokens} tokens cannot be pinned")
        self._check_hit(hit, hit.storage, hit.num_tokens, hit.keep)
        needed = tuple([self._blocks_to_pin(g, ids) for g, ids in enumerate(hit.blocks)])
        if not self._fit(hit.storage, needed):
            raise BlocksExhausted(
                f"pinning {hit.num_tokens} tokens takes {needed} blocks and {self.available_blocks()} are available; "
                "wait for a sequence to end or give the pool more blocks"
            )
        tables = self._borrowed_tables(hit)
        self._retain(tables)
        n, at = self._num_parked, hit.num_tokens
        return self._park(ParkedSequence(n, hit.storage, at, hit.keep, at, 0, tables, hit.domain, None, hit.snapshot))

    def adopt(self, parked: ParkedSequence, seq_id: str, max_tokens: int | None = None) -> SequenceHandle:
        """A new sequence with all that `parked` has; that stays as it is and can be adopted again.

        Paged ones share its blocks, dense ones begin with copies. Raises `StaleHandle`, `DuplicateSequence`,
        `SlotsExhausted`, `BlocksExhausted` (dense) or `InvalidArgument`.
        """
        self._check_parked(parked)
        return self._clone(parked, seq_id, max_tokens or parked.max_tokens)

    def unpark(self, parked: ParkedSequence, seq_id: str) -> SequenceHandle:
        """The sequence itself again, in the blocks it has, dense ones too; `parked` is gone. Raises as `adopt`."""
        self._check_parked(parked)
        self._check_opening(seq_id)
        del self._parked[parked.key]
        return self._begin_from(parked, seq_id, parked.max_tokens, tuple([table.copy() for table in parked.tables]))

    def drop(self, parked: ParkedSequence) -> None:
        """Give up a parked sequence's blocks. Raises `StaleHandle`."""
        self._check_parked(parked)
        del self._parked[parked.key]
        self._release_tables(parked.tables)
        self.prefix.enforce_limit()

    # -- giving to the prefix cache, and giving up ---------------------------------------------------------------

    def donate(self, handle: SequenceHandle, tokens: Callable[[int, int], Sequence[int]], written: int) -> None:
        """Offer the sequence's whole blocks to the prefix cache, which shares them from now on.

        `tokens(start, stop)` tells the ids at these positions and is asked only for what the cache has not got.
        `written` counts the tokens that storage is known to hold. Does nothing for a sequence that began without a
        prefix lookup, and after a context shift. Raises `StaleHandle`, or `InvalidArgument` if `written` exceeds what
        was appended.
        """
        state = self.sequence(handle)
        if not 0 <= written <= state.written:
            raise InvalidArgument(f"{written} tokens are offered as written; the sequence has {state.written}")
        if state.domain is None:
            return
        stop = written // self.block_size
        if state.cursor is not None and state.cursor.stop >= stop:
            return
        state.cursor = self.prefix.resume(state.cursor)
        start = state.cursor.stop if state.cursor is not None else 0
        ids = [table.block_ids[start:stop] or [None] * (stop - start) for table in state.tables]
        if stop > start and any(block_id is not None for group_ids in ids for block_id in group_ids):
            run = encode_tokens(tokens(start * self.block_size, stop * self.block_size))
            state.cursor = self.prefix.insert(state.domain, state.cursor, run, ids)

    def shift(self, handle: SequenceHandle, drop_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Forget the `drop_tokens` oldest tokens after the kept ones, in every group; returns the freed ids of each.

        Rotary positions of what remains fall by as much, so storage re-rotates every key it still holds; blocks of
        these that others share are replaced, and `copies` of the next append says by what. The sequence leaves the
        prefix cache. Raises `StaleHandle`, `BlocksExhausted`, or `InvalidArgument` for a dense sequence, recurrent
        state, a `keep` or number of tokens that is no multiple of the block size, or more than are there.
        """
        state = self.sequence(handle)
        start = self._checked_shift(state, drop_tokens)
        tables = state.tables
        firsts = [max(table.hole_stop, max(table.live_start, start) // self.block_size) for table in tables]
        shared = [
            [b for b, block_id in enumerate(table.ids(first, len(table.block_ids)), first) if pool.is_shared(block_id)]
            for first, table, pool in zip(firsts, tables, self.pools, strict=True)
        ]
        wanted = [len(indices) for indices in shared]
        # What others hold too does not come back by dropping it, and the sequence may claim as much again.
        kept_by_others = [
            sum(map(pool.is_shared, table.ids(table.hole_stop, first)))
            for first, table, pool in zip(firsts, tables, self.pools, strict=True)
        ]
        needed = tuple([a + b for a, b in zip(wanted, kept_by_others, strict=True)])
        if any(needed) and not self._fit(state.storage, needed):
            raise BlocksExhausted(
                f"the context shift of sequence {state.seq_id!r} takes {needed} more blocks, for others share its own, "
                f"and {self.available_blocks()} are available; wait for a sequence to end"
            )
        taken = self._supply.take(state.seq_id, wanted)
        for g, (table, first, pool) in enumerate(zip(tables, firsts, self.pools, strict=True)):
            for index, target in zip(shared[g], taken[g], strict=True):
                self._replace(state, g, index, target)
                table.num_announced = min(table.num_announced, index)
            for block_id in table.ids(first, len(table.block_ids)):
                if pool.is_cached(block_id):
                    self.prefix.forget(g, block_id)
        state.rope_offset += drop_tokens
        state.cursor = state.domain = None
        freed = tuple([self._drop_front(state, g, max(t.live_start, start)) for g, t in enumerate(tables)])
        for table in tables:
            table.rotated_start = table.live_start
        return freed

    def check_idle(self) -> None:
        """Assert at no cost, whenever no sequence is live, that every block is free, cached or parked."""
        assert not self._seq_ids, "a sequence is live"
        for g, pool in enumerate(self.pools):
            parked = {i for p in self._parked.values() for i in p.tables[g].ids(0, len(p.tables[g].block_ids))}
            assert pool.num_live == len(parked), "a block is live although no sequence is"

    def check_integrity(self) -> None:
        """Assert that pools, slots, tables and prefix cache agree, reference by reference. Reads every block."""
        live = self.sequences()
        assert len(live) == len(self._seq_ids) == self.max_seqs - len(self._free_slots), "slots and sequences disagree"
        self.prefix.check_integrity()
        for g, pool in enumerate(self.pools):
            pool.check_integrity()
            tables = [state.tables[g] for state in live] + [parked.tables[g] for parked in self._parked.values()]
            held = [block_id for table in tables for block_id in table.ids(0, len(table.block_ids))]
            assert len(held) == sum(table.num_held for table in tables), "a table miscounts its blocks"
            sources = [p.copy.source for state in live for p in state.copies if p.copy.group == g]
            counts = [0] * pool.num_blocks
            for block_id in (*held, *sources, *self.prefix.held_blocks(g)):
                counts[block_id] += 1
            assert counts == [pool.refcount(i) for i in range(pool.num_blocks)], "references and holders disagree"

    # -- helpers; those that can refuse run before anything is changed ------------------------------------------

    def _num_written_blocks(self, state: SequenceState) -> int:
        return -(-state.written // self.block_size)

    def _view(self, state: SequenceState) -> ParkedSequence:
        return ParkedSequence.of(-1, state, self._num_written_blocks(state), None)

    def _blocks_to_clone(self, parked: ParkedSequence, max_tokens: int) -> tuple[int, ...]:
        needed = self.blocks_needed(max_tokens, parked.storage, parked.keep)
        if parked.storage is StorageKind.DENSE:
            return needed
        tail = 1 if parked.written % self.block_size else 0
        return tuple(
            [
                n if group.spec.window is not None else max(0, n - table.num_held) + (tail if table.num_held else 0)
                for group, n, table in zip(self.groups, needed, parked.tables, strict=True)
            ]
        )

    def _blocks_to_pin(self, group: int, ids: Sequence[int | None]) -> int:
        pool, costs = self.pools[group], (0, 1) if self.groups[group].spec.window is not None else (0,)
        return sum(1 for block_id in ids if block_id is not None and pool.num_users(block_id) in costs)

    def _check_parked(self, parked: ParkedSequence) -> None:
        if self._parked.get(parked.key) is not parked:
            raise StaleHandle(f"parked sequence {parked.key} was unparked or dropped; detach one again")

    def _check_made(self, state: SequenceState) -> None:
        if state.unmade_copies:
            raise InvalidArgument(
                f"sequence {state.seq_id!r} begins with copies that are unmade; run its next step first"
            )

    def _check_no_slot_state(self, storage: StorageKind, snapshot: Snapshot | None) -> None:
        if snapshot is None and any(not group.takes_blocks(storage) for group in self.groups):
            raise InvalidArgument(
                f"a {storage.value} sequence keeps rings or state outside of blocks here; give a snapshot of them"
            )

    def _check_hit(self, hit: PrefixHit, storage: StorageKind, max_tokens: int, keep: int) -> None:
        if hit.storage is not storage or hit.keep != keep or hit.num_tokens > max_tokens:
            raise InvalidArgument(
                f"a hit of {hit.num_tokens} tokens for {hit.storage.value} storage with keep {hit.keep} does not suit "
                f"a {storage.value} sequence of {max_tokens} tokens with keep {keep}; look it up as it is used"
            )
        if not self.prefix.holds(hit):
            raise InvalidArgument(f"part of a hit of {hit.num_tokens} tokens was evicted since; look it up again")

    def _checked_shift(self, state: SequenceState, drop_tokens: int) -> int:
        """The first position after the kept ones that is left."""
        start = state.keep + state.rope_offset + drop_tokens
        if state.storage is not StorageKind.PAGED or any(group.spec.kind == "recurrent" for group in self.groups):
            raise InvalidArgument(f"a {state.storage.value} sequence of these layers cannot shift its context")
        if state.keep % self.block_size or drop_tokens % self.block_size:
            raise InvalidArgument(
                f"keep is {state.keep} and {drop_tokens} tokens are to go; round both to multiples of {self.block_size}"
            )
        if drop_tokens < 1 or start > state.written:
            raise InvalidArgument(
                f"{drop_tokens} tokens are to go and {state.written - state.keep - state.rope_offset} are there after "
                "the kept ones"
            )
        self._check_made(state)
        return start

    def _borrowed_tables(self, hit: PrefixHit) -> tuple[GroupTable, ...]:
        tables = self._empty_tables(hit.keep)
        for table, ids, group in zip(tables, hit.blocks, self.groups, strict=True):
            table.block_ids.extend(ids)
            if ids and group.spec.window is not None:
                table.live_start = max(hit.keep, group.spec.first_visible(hit.num_tokens))
                table.hole_stop = max(table.hole_start, table.live_start // self.block_size)
        return tables

    def _retain(self, tables: tuple[GroupTable, ...]) -> None:
        for table, pool in zip(tables, self.pools, strict=True):
            pool.retain(table.ids(0, len(table.block_ids)))

    def _park(self, parked: ParkedSequence) -> ParkedSequence:
        self._parked[parked.key] = parked
        self._num_parked += 1
        return parked

    def _clone(self, parked: ParkedSequence, seq_id: str, max_tokens: int) -> SequenceHandle:
        if max_tokens < parked.written - parked.rope_offset:
            raise InvalidArgument(f"max_tokens is {max_tokens}; the parked sequence has {parked.written} already")
        self._check_opening(seq_id)
        tables = tuple([table.copy() for table in parked.tables])
        copies: list[PendingCopy] = []
        if parked.storage is StorageKind.PAGED:
            self._retain(tables)
        else:
            begins = [table.ids(0, -(-parked.written // self.block_size)) for table in tables]
            tables, copies = self._dense_tables(max_tokens, parked.keep, begins, parked.written, False)
        handle = self._begin_from(parked, seq_id, max_tokens, tables)
        self.sequence(handle).copies = copies
        return handle

    def _begin_from(
        self, parked: ParkedSequence, seq_id: str, max_tokens: int, tables: tuple[GroupTable, ...]
    ) -> SequenceHandle:
        state = self._open(seq_id, parked.storage, max_tokens, parked.keep, tables)
        state.written = state.adopted = parked.written
        state.rope_offset = parked.rope_offset
        state.domain, state.cursor = parked.domain, parked.cursor
        return state.handle
