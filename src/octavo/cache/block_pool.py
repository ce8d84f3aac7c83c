"""Which block ids of one group are free, and how often the others are referenced. Owns no memory and no sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from octavo.cache.index_set import IndexSet
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.config import BLOCK_SIZES

MAX_BLOCKS = 2**31 - 1  # block ids travel to the device as int32; offsets made from them are 64-bit
_CACHED, _WATCHED = 1, 2


class BlockPool:
    """Reference-counted block ids `0 … num_blocks - 1`, lowest free id first.

    Transactional: a call does all it was asked, or raises a refusal and changes nothing. A block is free when its
    count is 0. The prefix cache holds at most one of a block's references, told apart by a mark: a block with no other
    is cached (it can be taken back by evicting it), every other block that is not free is live. Used by one thread.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """`num_blocks` may be 0 (a group that keeps nothing in blocks); `block_size` is tokens per block.

        Raises `InvalidArgument` if either is out of range.
        """
        _count("num_blocks", num_blocks)
        if num_blocks > MAX_BLOCKS:
            raise InvalidArgument(f"the pool is given {num_blocks} blocks; at most {MAX_BLOCKS} can be numbered")
        if block_size not in BLOCK_SIZES:
            raise InvalidArgument(f"block size is {block_size!r}; choose one of {', '.join(map(str, BLOCK_SIZES))}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = IndexSet(num_blocks)
        self._refcounts = [0] * num_blocks
        self._marks = bytearray(num_blocks)  # _CACHED where the prefix cache holds a reference, _WATCHED likewise
        self._num_cached = 0
        self._woken: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks whose only reference is the prefix cache's."""
        return self._num_cached

    @property
    def num_live(self) -> int:
        return self.num_blocks - len(self._free) - self._num_cached

    def refcount(self, block_id: int) -> int:
        """References to `block_id`, 0 if it is free. Raises `InvalidArgument` for an id out of range."""
        self._check_ids((block_id,))
        return self._refcounts[block_id]

    def is_cached(self, block_id: int) -> bool:
        """True if the prefix cache holds a reference to the block, alone or with others."""
        return self._marks[block_id] != 0

    def is_idle(self, block_id: int) -> bool:
        """True if the prefix cache alone holds the block."""
        return self._marks[block_id] != 0 and self._refcounts[block_id] == 1

    def num_users(self, block_id: int) -> int:
        """References other than the prefix cache's."""
        return self._refcounts[block_id] - (self._marks[block_id] != 0)

    def is_shared(self, block_id: int) -> bool:
        """True if more than one holder other than the prefix cache has a reference."""
        return self._refcounts[block_id] > (2 if self._marks[block_id] else 1)

    def holders(self) -> tuple[Sequence[int], bytes]:
        """Of every block, its references, and 0 if none of them is the prefix cache's. To be read at once."""
        return self._refcounts, bytes(self._marks)

    def longest_run(self, with_cached: bool = False) -> int:
        """Blocks in the longest contiguous run of free blocks, or of free and cached ones. Reads every block."""
        if not with_cached or not self._num_cached:
            return self._free.longest_run()
        counts, marks = self._refcounts, self._marks
        takeable = (i for i, count in enumerate(counts) if not count or (count == 1 and marks[i]))
        return IndexSet.of(self.num_blocks, takeable).longest_run()

    def allocate(self, n: int) -> tuple[int, ...]:
        """Take the `n` lowest free blocks, each with one reference, ascending.

        Raises `BlocksExhausted` if fewer are free.
        """
        _count("blocks to allocate", n)
        if n > len(self._free):
            raise BlocksExhausted(
                f"{n} blocks are needed and {len(self._free)} of {self.num_blocks} are free; "
                "wait for a sequence to finish or give the pool more blocks"
            )
        pop, refcounts = self._free.pop_lowest, self._refcounts
        block_ids = (pop(),) if n == 1 else tuple([pop() for _ in range(n)])
        for block_id in block_ids:
            refcounts[block_id] = 1
        return block_ids

    def allocate_run(self, n: int) -> tuple[int, ...]:
        """Take the lowest contiguous run of `n` free blocks, each with one reference, ascending.

        Raises `BlocksExhausted` if there is no such run, even where `n` blocks are free in pieces.
        """
        _count("blocks to allocate", n)
        if n == 0:
            return ()
        start = self._free.lowest_run(n) if n <= len(self._free) else None
        if start is None:
            raise BlocksExhausted(
                f"{n} contiguous blocks are needed; {len(self._free)} of {self.num_blocks} are free, at most "
                f"{self.longest_run()} in a row; wait for a sequence to finish or give the pool more blocks"
            )
        self._free.remove_run(start, n)
        self._refcounts[start : start + n] = [1] * n
        return tuple(range(start, start + n))

    def allocate_at(self, start: int, n: int) -> tuple[int, ...]:
        """Take the blocks `start … start + n - 1`, each with one reference. Raises `InvalidArgument` if one is not free
        or out of range.
        """
        _count("blocks to allocate", n)
        _count("the first block to allocate", start)
        if start + n > self.num_blocks or any(self._refcounts[start : start + n]):
            raise InvalidArgument(f"blocks {start} to {start + n - 1} of {self.num_blocks} are not all free")
        self._free.remove_run(start, n)
        self._refcounts[start : start + n] = [1] * n
        return tuple(range(start, start + n))

    def retain(self, block_ids: Sequence[int]) -> None:
        """Add one reference per mention. Raises `InvalidArgument` if one of them is free or out of range."""
        self._check_ids(block_ids)
        refcounts = self._refcounts
        for block_id in block_ids:
            if not refcounts[block_id]:
                raise InvalidArgument(f"block {block_id} is free and cannot be retained; allocate it first")
        marks = self._marks
        for block_id in block_ids:
            if refcounts[block_id] == 1 and marks[block_id]:
                self._num_cached -= 1
            refcounts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        """Drop one reference per mention, last mention first; returns the blocks that became free, in that order.

        Raises `InvalidArgument` if one of them is out of range or has fewer references than mentions, the prefix
        cache's own not counted.
        """
        refcounts, marks, num_blocks = self._refcounts, self._marks, self.num_blocks
        mentions: Mapping[int, int] = dict.fromkeys(block_ids, 1)
        if len(mentions) != len(block_ids):
            mentions = Counter(block_ids)
        for block_id, times in mentions.items():
            if not 0 <= block_id < num_blocks:
                raise self._out_of_range(block_ids)
            if refcounts[block_id] < (times + 1 if marks[block_id] else times):
                raise InvalidArgument(
                    f"block {block_id} has {refcounts[block_id]} references, {int(marks[block_id] != 0)} of them the "
                    f"prefix cache's, and cannot be released {times} times"
                )
        freed = []
        for block_id in reversed(block_ids):
            count = refcounts[block_id] - 1
            refcounts[block_id] = count
            if not count:
                freed.append(block_id)
            elif count == 1 and marks[block_id]:
                self._num_cached += 1
                if marks[block_id] == _WATCHED:
                    marks[block_id] = _CACHED
                    self._woken.append(block_id)
        self._free.add(freed)
        return tuple(freed)

    def cache(self, block_ids: Sequence[int]) -> None:
        """Add the prefix cache's reference to blocks that others hold now. Raises `InvalidArgument` if it has one."""
        self._check_ids(block_ids)
        for block_id in block_ids:
            if not self._refcounts[block_id] or self._marks[block_id]:
                raise InvalidArgument(f"block {block_id} is free or in the prefix cache already; it cannot enter it")
        for block_id in block_ids:
            self._refcounts[block_id] += 1
            self._marks[block_id] = _CACHED

    def uncache(self, block_id: int) -> bool:
        """Drop the prefix cache's reference; True if that freed the block. Raises `InvalidArgument` if it has none."""
        self._check_ids((block_id,))
        if not self._marks[block_id]:
            raise InvalidArgument(f"block {block_id} is not in the prefix cache and cannot leave it")
        self._marks[block_id] = 0
        self._refcounts[block_id] -= 1
        if self._refcounts[block_id]:
            return False
        self._num_cached -= 1
        self._free.add((block_id,))
        return True

    def watch(self, block_id: int) -> None:
        """Have `take_woken` report the block once the prefix cache alone holds it."""
        self._marks[block_id] = _WATCHED

    def take_woken(self) -> list[int]:
        """Watched blocks whose last other holder has left since the previous call; each is watched no more."""
        woken, self._woken = self._woken, []
        return woken

    def check_integrity(self) -> None:
        """Assert that counts, marks and free set agree, so `free + live + cached == total`. Reads every block."""
        idle = sum(1 for count, mark in zip(self._refcounts, self._marks, strict=True) if mark and count == 1)
        assert idle == self._num_cached, "cached blocks are miscounted"
        assert not any(m and not c for c, m in zip(self._refcounts, self._marks, strict=True)), "a free block is cached"
        self._free.check_integrity()
        assert self._refcounts.count(0) == self.num_free, "the free set and the reference counts disagree"
        assert all(count >= 0 for count in self._refcounts), "a reference count is negative"

    def _check_ids(self, block_ids: Sequence[int]) -> None:
        if block_ids and (min(block_ids) < 0 or max(block_ids) >= self.num_blocks):
            raise self._out_of_range(block_ids)

    def _out_of_range(self, block_ids: Sequence[int]) -> InvalidArgument:
        return InvalidArgument(
            f"block ids are {min(block_ids)} to {max(block_ids)}; the pool has ids 0 to {self.num_blocks - 1}"
        )


def _count(name: str, value: int) -> None:
    if type(value) is not int or value < 0:  # a bool is no count
        raise InvalidArgument(f"{name} is {value!r}; it must be a whole number of at least 0")
