"""The device side of a sequence's block tables: which stored row each position lies in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.cache.sequence import SequenceState
from octavo.step_batch import StepRow


class BlockTable:
    """Block ids of one slot, per group, indexed by absolute block. Forgotten when the slot's tenant changes."""

    def __init__(self, num_groups: int, max_blocks: int, block_size: int) -> None:
        self._ids: NDArray[np.int64] = np.zeros((num_groups, max_blocks), dtype=np.int64)
        self._block_size = block_size
        self._generation: int | None = None

    def update(self, row: StepRow) -> None:
        """Take over the blocks that `row` gained. A row of another generation starts from an empty table."""
        self._generation = row.generation
        for fresh in row.fresh:
            self._ids[fresh.group, fresh.first : fresh.first + len(fresh.block_ids)] = fresh.block_ids

    def restore(self, sequence: SequenceState) -> None:
        """Take over the blocks of a sequence whose first tokens were stored without a step."""
        self._generation = sequence.handle.generation
        for group, table in enumerate(sequence.tables):
            self._ids[group, : len(table.block_ids)] = [0 if block is None else block for block in table.block_ids]

    def blocks(self, group: int, first: int, last: int) -> NDArray[np.int64]:
        """Ids of absolute blocks `[first, last)`."""
        return self._ids[group, first:last]

    def slot_mapping(self, group: int, start: int, stop: int) -> NDArray[np.int64]:
        """Stored row of each position in `[start, stop)`."""
        position = np.arange(start, stop)
        rows: NDArray[np.int64] = self._ids[group, position // self._block_size] * self._block_size
        return rows + position % self._block_size
