"""Takes blocks of all groups at once: free ones first, then those that only the prefix cache holds.

Owns that order and its arithmetic; which cached blocks go is the prefix cache's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cache.block_pool import BlockPool
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.refusals import BlocksExhausted
from octavo.cache.run_placement import SPARED, Use, leaves_room, place_run


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A contiguous run `[start, start + length)`, whose first `num_shared` blocks are cached and stay so."""

    start: int
    length: int
    num_shared: int


class BlockSupply:
    """Over one `BlockPool` per group. Transactional over the groups: a refused call leaves everything as it was."""

    def __init__(self, pools: Sequence[BlockPool], prefix: PrefixCache) -> None:
        self.pools = tuple(pools)
        self._prefix = prefix
        self._longest = [0] * len(self.pools)  # run that was ever taken: others like it shall find room

    def room(self, group: int) -> int:
        """Blocks that can be taken: free and cached ones."""
        pool = self.pools[group]
        return pool.num_free + pool.num_cached

    def longest_run(self, group: int) -> int:
        """Blocks in the longest contiguous run that can be taken. Reads every block."""
        return self.pools[group].longest_run(with_cached=True)

    def take(self, seq_id: str, wanted: Sequence[int]) -> list[tuple[int, ...]]:
        """Take `wanted[g]` blocks of each group g. Raises `BlocksExhausted`."""
        for g, (n, pool) in enumerate(zip(wanted, self.pools, strict=True)):
            if n > pool.num_free + pool.num_cached:
                raise BlocksExhausted(
                    f"sequence {seq_id!r} needs {n} more blocks in group {g}; {self.room(g)} of {pool.num_blocks} are "
                    "free; wait for a sequence to end"
                )
        for g, (n, pool) in enumerate(zip(wanted, self.pools, strict=True)):
            if n > pool.num_free:
                self._prefix.evict(g, n)
        return [pool.allocate(n) if n else () for n, pool in zip(wanted, self.pools, strict=True)]

    def plan_runs(self, lengths: Sequence[int], begins: Sequence[Sequence[int]]) -> list[RunPlan] | None:
        """Where a contiguous run of `lengths[g]` blocks of each group g can be had; None if one cannot.

        Each is to begin with the rows of the cached blocks `begins[g]`: in these themselves if they lie in a row and
        what follows can be taken, else in other blocks. Changes nothing. Reads every block.
        """
        plans = [self._plan_run(g, n, ids) for g, (n, ids) in enumerate(zip(lengths, begins, strict=True))]
        found = [plan for plan in plans if plan is not None]
        return found if len(found) == len(plans) else None

    def take_run(self, group: int, plan: RunPlan) -> tuple[int, ...]:
        """Take what `plan` does not share; what is cached there, and all that follows it, is forgotten.

        Nothing of the group may have changed since it was planned, but that the blocks to begin with are held.
        """
        pool, first = self.pools[group], plan.start + plan.num_shared
        wanted = range(first, plan.start + plan.length)
        self._prefix.forget_all(group, [block_id for block_id in wanted if pool.is_cached(block_id)])
        self._longest[group] = max(self._longest[group], plan.length)
        return pool.allocate_at(first, len(wanted)) if wanted else ()

    def no_run(self, lengths: Sequence[int]) -> BlocksExhausted:
        """The refusal of runs of `lengths[g]` blocks."""
        wanting = [g for g, n in enumerate(lengths) if n > self.longest_run(g)]
        g = wanting[0] if wanting else 0
        return BlocksExhausted(
            f"{lengths[g]} contiguous blocks are needed; {self.room(g)} of {self.pools[g].num_blocks} are free, "
            f"at most {self.longest_run(g)} in a row; wait for a sequence to finish or give the pool more blocks"
        )

    def _plan_run(self, group: int, length: int, begins: Sequence[int]) -> RunPlan | None:
        if not length:
            return RunPlan(0, 0, 0)
        uses, longest = self._uses(group), self._longest[group]
        first, n = begins[0] if begins else 0, len(begins)
        if begins and list(begins) == list(range(first, first + n)) and first + length <= len(uses):
            extends = all(use is not None for use in uses[first + n : first + length])
            if extends and leaves_room(uses, first, length, longest):
                return RunPlan(first, length, n)
        for block_id in begins:  # they are read while the others are written
            uses[block_id] = None if uses[block_id] is None else SPARED
        start = place_run(uses, length, longest)
        return None if start is None else RunPlan(start, length, 0)

    def _uses(self, group: int) -> list[Use]:
        pool = self.pools[group]
        last = self._prefix.last_uses(group) if pool.num_cached else {}
        return [0 if not pool.refcount(i) else last[i] if pool.is_idle(i) else None for i in range(pool.num_blocks)]
