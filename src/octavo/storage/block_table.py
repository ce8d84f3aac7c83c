"""The device side of a sequence's block tables: which stored row each position lies in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.cache.sequence import SequenceState
from octavo.step_batch import StepRow, StorageKind


class BlockTable:
    """Block ids of one slot, per group. Forgotten when the slot's tenant changes.

    The bookkeeping counts blocks and positions from the sequence's first token. Here both count what context shifts
    have left, so that a table does not grow for ever: blocks between the kept ones and the first live one have no
    column, and position p from `keep` on lies `skip` rows further.

        position    0 … keep - 1              keep …
        rows        [ kept … | not shown ] [ not shown | live … ]
    """

    def __init__(self, num_groups: int, max_blocks: int, block_size: int, strides: Sequence[int] | None = None) -> None:
        """`max_blocks` hold the longest sequence that is shown without a gap. A group's blocks lie `strides` of them
        apart (see `LayerStore`), 1 unless given; its ids, as told here, are multiples of that.
        """
        # A gap begins and ends within a block.
        self._ids: NDArray[np.int64] = np.zeros((num_groups, max_blocks + 2), dtype=np.int64)
        self._strides = tuple(strides) if strides is not None else (1,) * num_groups
        self.block_size = block_size
        self.generation: int | None = None
        self.keep = self.rope_offset = self.skip = 0
        self.num_changes = 0  # ever, of any group's ids
        self._kept_blocks = self._removed_blocks = 0

    def update(self, row: StepRow) -> None:
        """Take over the blocks that `row` gained. A row of another generation starts from an empty table."""
        assert row.storage is StorageKind.PAGED or max(self._strides) == 1, "the rows of blocks lie apart"
        if row.generation != self.generation:
            self.generation = row.generation
            self._place(row.keep, row.rope_offset)
        elif row.rope_offset != self.rope_offset:
            self._drop(row.keep, row.rope_offset)
        for fresh in row.fresh:
            self._set(fresh.group, fresh.first, fresh.block_ids)

    def restore(self, sequence: SequenceState) -> None:
        """Take over all blocks of a sequence, whose first tokens were stored without a step."""
        self.generation = sequence.handle.generation
        self._place(sequence.keep, sequence.rope_offset)
        for group, table in enumerate(sequence.tables):
            self._set(group, 0, [0 if block is None else block for block in table.block_ids])

    def blocks_before(self, group: int, position: int) -> NDArray[np.int64]:
        """Ids of all blocks with positions before `position`, in order. A copy."""
        last = position - 1 + (self.skip if position > self.keep else 0)
        return self._ids[group, : last // self.block_size + 1].copy()

    def columns(self, group: int) -> NDArray[np.int64]:
        """Ids of all columns, whether in use or not. Not a copy: valid until the next change."""
        ids: NDArray[np.int64] = self._ids[group]
        return ids

    def slot_mapping(self, group: int, start: int, stop: int) -> NDArray[np.int64]:
        """Stored row of each position in `[start, stop)`."""
        position = np.arange(start, stop)
        if self.skip:
            position[position >= self.keep] += self.skip
        rows: NDArray[np.int64] = self._ids[group, position // self.block_size] * self.block_size
        return rows + position % self.block_size

    def stored_row(self, group: int, position: int) -> int:
        """`slot_mapping` of one position."""
        column = position + (self.skip if position >= self.keep else 0)
        block, row = divmod(column, self.block_size)
        return int(self._ids[group, block]) * self.block_size + row

    def _place(self, keep: int, rope_offset: int) -> None:
        size = self.block_size
        self.keep, self.rope_offset = keep, rope_offset
        self._kept_blocks = -(-keep // size)
        self._removed_blocks = max(0, (keep + rope_offset) // size - self._kept_blocks) if rope_offset else 0
        self.skip = rope_offset - self._removed_blocks * size

    def _drop(self, keep: int, rope_offset: int) -> None:
        """Close the gap that a context shift has left."""
        before = self._removed_blocks
        self._place(keep, rope_offset)
        self.num_changes += 1
        live = self._ids[:, self._kept_blocks + self._removed_blocks - before :].copy()
        self._ids[:, self._kept_blocks : self._kept_blocks + live.shape[1]] = live

    def _set(self, group: int, first: int, ids: Sequence[int]) -> None:
        """Blocks from the sequence's `first` on. Those that have no column are left out."""
        self.num_changes += 1
        stride = self._strides[group]
        if stride != 1:
            ids = [block * stride for block in ids]
        if not self._removed_blocks:
            self._ids[group, first : first + len(ids)] = ids
            return
        block = np.arange(first, first + len(ids))
        kept, live = block < self._kept_blocks, block >= self._kept_blocks + self._removed_blocks
        column = np.where(kept, block, block - self._removed_blocks)[kept | live]
        self._ids[group, column] = np.asarray(ids)[kept | live]
