"""Which block ids of one group are free, and how often the others are referenced. Owns no memory and no sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from octavo.cache.index_set import IndexSet
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.config import BLOCK_SIZES

MAX_BLOCKS = 2**31 - 1  # block ids travel to the device as int32; offsets made from them are 64-bit


class BlockPool:
    """Reference-counted block ids `0 … num_blocks - 1`, lowest free id first.

    Transactional: a call does all it was asked, or raises a refusal and changes nothing. A block is free when its
    count is 0, else live. Used by one thread.
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
        self._num_live = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_live(self) -> int:
        return self._num_live

    def refcount(self, block_id: int) -> int:
        """References to `block_id`, 0 if it is free. Raises `InvalidArgument` for an id out of range."""
        self._check_ids((block_id,))
        return self._refcounts[block_id]

    def longest_run(self) -> int:
        """Blocks in the longest contiguous free run."""
        return self._free.longest_run()

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
        block_ids = tuple([pop() for _ in range(n)])
        for block_id in block_ids:
            refcounts[block_id] = 1
        self._num_live += n
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
        self._num_live += n
        return tuple(range(start, start + n))

    def retain(self, block_ids: Sequence[int]) -> None:
        """Add one reference per mention. Raises `InvalidArgument` if one of them is free or out of range."""
        self._check_ids(block_ids)
        refcounts = self._refcounts
        for block_id in block_ids:
            if not refcounts[block_id]:
                raise InvalidArgument(f"block {block_id} is free and cannot be retained; allocate it first")
        for block_id in block_ids:
            refcounts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        """Drop one reference per mention, last mention first; returns the blocks that became free, in that order.

        Raises `InvalidArgument` if one of them is out of range or has fewer references than mentions.
        """
        self._check_ids(block_ids)
        refcounts = self._refcounts
        mentions: Mapping[int, int] = dict.fromkeys(block_ids, 1)
        if len(mentions) != len(block_ids):
            mentions = Counter(block_ids)
        for block_id, times in mentions.items():
            if refcounts[block_id] < times:
                raise InvalidArgument(
                    f"block {block_id} has {refcounts[block_id]} references and cannot be released {times} times"
                )
        freed = []
        for block_id in reversed(block_ids):
            count = refcounts[block_id] - 1
            refcounts[block_id] = count
            if not count:
                freed.append(block_id)
        self._free.add(freed)
        self._num_live -= len(freed)
        return tuple(freed)

    def check_integrity(self) -> None:
        """Assert `free + live == total` and that counts and free set agree. Reads every block."""
        assert self.num_free + self.num_live == self.num_blocks, "free and live blocks do not add up to the pool"
        self._free.check_integrity()
        assert self._refcounts.count(0) == self.num_free, "the free set and the reference counts disagree"
        assert all(count >= 0 for count in self._refcounts), "a reference count is negative"

    def _check_ids(self, block_ids: Sequence[int]) -> None:
        if block_ids and (min(block_ids) < 0 or max(block_ids) >= self.num_blocks):
            raise InvalidArgument(
                f"block ids are {min(block_ids)} to {max(block_ids)}; the pool has ids 0 to {self.num_blocks - 1}"
            )


def _count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be a whole number of at least 0")
