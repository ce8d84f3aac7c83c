"""Takes blocks of all groups at once: free ones first, then those that only the prefix cache holds.

Owns that order and its arithmetic; which cached blocks go is the prefix cache's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.refusals import BlocksExhausted


class BlockSupply:
    """Over one `BlockPool` per group. Transactional over the groups: a refused call leaves everything as it was."""

    def __init__(self, pools: Sequence[BlockPool], prefix: PrefixCache) -> None:
        self.pools = tuple(pools)
        self._prefix = prefix

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

    def take_runs(self, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Take a contiguous run of `lengths[g]` blocks of each group g. Raises `BlocksExhausted`."""
        for g, n in enumerate(lengths):
            if n > self.longest_run(g):
                pool = self.pools[g]
                raise BlocksExhausted(
                    f"{n} contiguous blocks are needed; {self.room(g)} of {pool.num_blocks} are free, at most "
                    f"{self.longest_run(g)} in a row; wait for a sequence to finish or give the pool more blocks"
                )
        return [self._take_run(g, n) for g, n in enumerate(lengths)]

    def _take_run(self, group: int, n: int) -> tuple[int, ...]:
        """Which cached blocks stand in the way is not known, so ever more of the oldest go until there is a run."""
        pool, step = self.pools[group], 1
        while pool.longest_run() < n:
            self._prefix.evict(group, min(pool.num_free + step, self.room(group)))
            step *= 2
        return pool.allocate_run(n)
