"""Dense sequences' runs: where one begins with what the prefix cache has, and when its blocks may be written again.

A finished dense sequence gives its blocks where they lie, by reference as a paged one does: that copies nothing, and a
run that is needed evicts what is cached in its place. So in a pool that holds just one sequence of full length, the
next turn of a conversation finds its past at the beginning of the only run there is, and begins in it. Only where such
a run cannot be extended, because others hold what follows, are the blocks copied into another.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.admission_pool import AdmissionPool
from octavo.cache.prefix_types import PrefixHit
from octavo.cache.refusals import InvalidArgument
from octavo.cache.sequence import GroupTable, PendingCopy, SequenceHandle, SequenceState
from octavo.step_batch import StorageKind


class RunPool(AdmissionPool):
    """An `AdmissionPool` that knows how dense sequences share blocks."""

    def begin_dense(self, hit: PrefixHit, max_tokens: int) -> tuple[PrefixHit, tuple[int, ...]]:
        """What of `hit` a dense sequence that is allocated now is to take, and the blocks per group it then takes up.

        All of it, or nothing where it would have to wait for that, and perhaps not without. Changes nothing.
        """
        needed = self.blocks_needed(max_tokens, StorageKind.DENSE, hit.keep)
        begins = [[i for i in ids if i is not None] for ids in hit.blocks]
        plans = self._supply.plan_runs(needed, begins) if hit.num_tokens else None
        if plans is None:
            return hit.without_tokens(), needed
        idle = [sum(map(pool.is_idle, ids)) for pool, ids in zip(self.pools, begins, strict=True)]
        costs = tuple([plan.length - plan.num_shared + n for plan, n in zip(plans, idle, strict=True)])
        if any(cost > room for cost, room in zip(costs, self.available_blocks(), strict=True)):
            return hit.without_tokens(), needed
        return hit, costs

    def can_allocate(
        self, storage: StorageKind, max_tokens: int, keep: int = 0, prefix: PrefixHit | None = None
    ) -> bool:
        """As `AdmissionPool`; of a dense one also whether there is a run for it beside what it is to begin with."""
        if storage is StorageKind.PAGED or prefix is None or not prefix.num_tokens:
            return super().can_allocate(storage, max_tokens, keep, prefix)
        return len(self._free_slots) > 0 and self.begin_dense(prefix, max_tokens)[0] is prefix

    def trim_tail(self, handle: SequenceHandle, n: int) -> None:
        """As `SequencePool`. Raises `InvalidArgument` also if others share what a dense one would write again."""
        state = self.sequence(handle)
        self._check_private_run(state, (state.written - n) // self.block_size)
        super().trim_tail(handle, n)

    def reset(self, handle: SequenceHandle) -> SequenceHandle:
        """As `SequencePool`. Raises `InvalidArgument` also if others share blocks of a dense one."""
        self._check_private_run(self.sequence(handle), 0)
        return super().reset(handle)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _dense_tables(
        self, max_tokens: int, keep: int, begins: Sequence[Sequence[int]], written: int, shares: bool
    ) -> tuple[tuple[GroupTable, ...], list[PendingCopy]]:
        """Runs for `max_tokens` that begin with the rows of blocks `begins`, and the copies that this takes.

        If it `shares`, these are cached ones, and a run may begin with them themselves.
        """
        lengths = self.blocks_needed(max_tokens, StorageKind.DENSE)
        plans = self._supply.plan_runs(lengths, begins if shares else [()] * len(lengths))
        if plans is None:
            raise self._supply.no_run(lengths)
        tables, copies = self._empty_tables(keep), []
        for g, (table, plan, ids) in enumerate(zip(tables, plans, begins, strict=True)):
            self.pools[g].retain(ids)
            taken = self._supply.take_run(g, plan)
            table.block_ids.extend((*ids[: plan.num_shared], *taken))
            if not plan.num_shared:
                pairs = zip(ids, taken, strict=False)
                copies += [PendingCopy(self._block_copy(g, *pair), index, written) for index, pair in enumerate(pairs)]
        return tables, copies

    def _check_private_run(self, state: SequenceState, first: int) -> None:
        if state.storage is StorageKind.PAGED:
            return
        for table, pool in zip(state.tables, self.pools, strict=True):
            for block_id in table.ids(max(0, first), len(table.block_ids)):
                if pool.is_shared(block_id):
                    raise InvalidArgument(
                        f"block {block_id} of dense sequence {state.seq_id!r} is shared and cannot be written again; "
                        "release the sequence and allocate another"
                    )
