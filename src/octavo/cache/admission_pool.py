"""Whom there is room for: arithmetic on free blocks, cached ones, and what live sequences may still claim."""

from __future__ import annotations

from octavo.cache.prefix_types import PrefixHit
from octavo.cache.sequence import SequenceHandle, SequenceState
from octavo.cache.sequence_pool import SequencePool
from octavo.cache.spec import CacheGroup
from octavo.step_batch import StorageKind


class AdmissionPool(SequencePool):
    """A `SequencePool` that can say what fits. Changes nothing."""

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """Per group, blocks that no sequence holds; those that only the prefix cache holds are among them."""
        return tuple([pool.num_free + pool.num_cached for pool in self.pools])

    @property
    def num_cached_blocks(self) -> tuple[int, ...]:
        """Per group, blocks that only the prefix cache holds."""
        return tuple([pool.num_cached for pool in self.pools])

    def longest_runs(self) -> tuple[int, ...]:
        """Blocks in the longest contiguous run that can be taken, per group. Reads every block."""
        return tuple([self._supply.longest_run(g) for g in range(len(self.groups))])

    def fits_ever(self, tokens: int, storage: StorageKind, keep: int = 0) -> bool:
        """True if a sequence of `tokens` tokens fits the pool when nothing else is in it."""
        needed = self.blocks_needed(tokens, storage, keep)
        return all(n <= pool.num_blocks for n, pool in zip(needed, self.pools, strict=True))

    def largest_fit(self, storage: StorageKind) -> int | None:
        """Most tokens that one sequence can ever have here; None if no group limits its length."""
        limits = [
            pool.num_blocks * self.block_size
            for group, pool in zip(self.groups, self.pools, strict=True)
            if group.takes_blocks(storage) and not self._window_always_fits(group, pool.num_blocks, storage)
        ]
        return min(limits, default=None)

    def available_blocks(self) -> tuple[int, ...]:
        """Per group, free blocks less those that live sequences may still take of what they are promised."""
        paged = [state for state in self._slots if state is not None and state.storage is StorageKind.PAGED]
        return tuple([free - self._claims(paged, g) for g, free in enumerate(self.num_free_blocks)])

    def _claims(self, states: list[SequenceState], group: int) -> int:
        """The sum of `_claim` for what they are promised. A full group's is asked for at most steps, so it is not taken
        one by one.
        """
        if self.groups[group].spec.window is not None:
            return sum([self._claim(state, group, state.promised_blocks[group]) for state in states])
        size, is_shared, total = self.block_size, self.pools[group].is_shared, 0
        for state in states:
            table = state.tables[group]
            missing = state.promised_blocks[group] - table.num_held
            if missing > 0:
                total += missing
            index, filled = divmod(state.written, size)
            if filled and index < len(table.block_ids) and is_shared(table.block_ids[index]):  # type: ignore[arg-type]
                total += 1
        return total

    def promised(self, handle: SequenceHandle) -> int:
        """Tokens that the sequence may have without another `promise`. Raises `StaleHandle`."""
        return self.sequence(handle).promised

    def growth(self, handle: SequenceHandle, tokens: int) -> tuple[int, ...]:
        """Per group, the available blocks that a promise of `tokens` tokens takes up. Raises `StaleHandle`."""
        state = self.sequence(handle)
        needed = self.blocks_needed(self._whole_blocks(tokens, state.max_tokens), state.storage, state.keep)
        return tuple(
            [
                max(0, self._claim(state, g, n) - self._claim(state, g, now))
                for g, (n, now) in enumerate(zip(needed, state.promised_blocks, strict=True))
            ]
        )

    def may_outgrow(self, storage: StorageKind, promised: int, max_tokens: int, keep: int = 0) -> tuple[int, ...]:
        """Per group, 1 where a sequence of up to `max_tokens` may take more blocks than `promised` do, else 0."""
        most = self.blocks_needed(max_tokens, storage, keep)
        now = self.blocks_needed(self._whole_blocks(promised, max_tokens), storage, keep)
        return tuple([int(m > n) for m, n in zip(most, now, strict=True)])

    def _claim(self, state: SequenceState, group: int, needed: int) -> int:
        """Blocks that a paged sequence may still take. What it shares of a window does not become free as it moves on,
        so it claims that anew; of a full group it may only have to replace the block it writes into.
        """
        if self.groups[group].spec.window is not None:
            return max(0, needed - self._num_private(state, group))
        return max(0, needed - state.tables[group].num_held) + self._shares_tail(state, group)

    def _num_private(self, state: SequenceState, group: int) -> int:
        pool, table = self.pools[group], state.tables[group]
        return sum(1 for block_id in table.ids(0, len(table.block_ids)) if not pool.is_shared(block_id))

    def blocks_to_admit(
        self, storage: StorageKind, max_tokens: int, keep: int = 0, prefix: PrefixHit | None = None
    ) -> tuple[int, ...]:
        """Per group, the available blocks that a sequence of `max_tokens` takes up, if it begins with `prefix`.

        Blocks of the prefix that others use as well cost nothing in a full group; idle ones are no longer available to
        others. In a window that moves on, each costs one when its only user begins to share it.
        """
        needed = self.blocks_needed(max_tokens, storage, keep)
        if prefix is None or storage is StorageKind.DENSE:
            return needed
        costs = []
        for group, n, ids, pool in zip(self.groups, needed, prefix.blocks, self.pools, strict=True):
            held = [block_id for block_id in ids if block_id is not None]
            if group.spec.window is None:
                costs.append(max(0, n - len(held)) + sum(map(pool.is_idle, held)))
            else:
                costs.append(n + (sum(pool.num_users(i) == 1 for i in held) if self._seq_ids else 0))
        return tuple(costs)

    def can_allocate(
        self, storage: StorageKind, max_tokens: int, keep: int = 0, prefix: PrefixHit | None = None
    ) -> bool:
        """True if a slot is free and a new sequence can grow to `max_tokens` without taking what others may claim."""
        needed = self.blocks_to_admit(storage, max_tokens, keep, prefix)
        return len(self._free_slots) > 0 and self._fit(storage, needed)

    def _fit(self, storage: StorageKind, needed: tuple[int, ...]) -> bool:
        rooms = [self.available_blocks()] + ([self.longest_runs()] if storage is StorageKind.DENSE else [])
        return all(n <= room for per_group in rooms for n, room in zip(needed, per_group, strict=True))

    def _shares_tail(self, state: SequenceState, group: int) -> bool:
        """True if the next token goes into a block that other sequences hold too, so that it takes one more."""
        tail = state.tail_block(group, self.block_size)
        return tail is not None and self.pools[group].is_shared(tail)

    def _window_always_fits(self, group: CacheGroup, num_blocks: int, storage: StorageKind) -> bool:
        if group.spec.window is None or self.max_append_tokens is None:
            return False
        huge = num_blocks * self.block_size + 1
        return group.max_blocks(storage, huge, self.block_size, self.max_append_tokens) <= num_blocks
