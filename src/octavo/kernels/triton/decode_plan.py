"""Which program of a paged decode attends over which columns. Plain numpy on the host: decides, launches nothing.

A column is a position in a sequence's block table: block `column // block_size`, row `column % block_size` of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

GRAIN = 64  # columns; cuts lie at multiples of the largest tile
ITEM_FIELDS, MERGE_FIELDS, GAP_FIELDS = 8, 4, 2

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The sequences of a step, [R] each: `num_queries` consecutive query rows from `first_query` on, 0 for padding.

        columns     first_column ...... | keep ... keep + skip | ...... columns
                    visible             | gap, hidden          | visible, the last one is the last query row's own

    `first_column` is the first that the first query row sees. `table_begin` is where column 0's block id lies in the
    flat table. An empty sequence has `columns` 0 (or less) and gets zeros.
    """

    first_query: Ints
    num_queries: Ints
    first_column: Ints
    columns: Ints
    table_begin: Ints
    keep: Ints | None = None
    skip: Ints | None = None

    @property
    def lengths(self) -> Ints:
        """Columns from the first visible one on."""
        lengths: Ints = np.maximum(self.columns - self.first_column, 0)
        return lengths

    @property
    def has_gaps(self) -> bool:
        return self.skip is not None and bool(self.skip.any())


@dataclass(frozen=True, slots=True)
class WorkList:
    """What the kernels read: `items` [capacity, 8], `merges` [R, 4] and `gaps` [R, 2], int32.

    item     first query row, query rows, first column, end column, table offset, partial slot or -1, columns, sequence
    merge    first query row, query rows, first slot, slots (0 where one item did it all)

    `first_items` [R + 1] are where each sequence's items begin; its last chunk may grow up to column `limits` [R].
    Items from `num_items` on are zeros and do nothing.
    """

    items: NDArray[np.int32]
    merges: NDArray[np.int32]
    gaps: NDArray[np.int32]
    first_items: Ints
    limits: Ints
    num_slots: int

    @property
    def num_items(self) -> int:
        return int(self.first_items[-1])

    @property
    def longest_first(self) -> NDArray[np.int32]:
        """The items in the order that they are begun in: none with many columns is left when all others are done."""
        items: NDArray[np.int32] = self.items[np.argsort(self.items[:, 2] - self.items[:, 3], kind="stable")]
        return items

    def padded(self, capacity: int) -> WorkList:
        """The same work in a list of `capacity` items, for a launch geometry that stays; it must hold them."""
        assert self.num_items <= capacity, f"{self.num_items} items in a work list for {capacity}"
        items = np.zeros((capacity, ITEM_FIELDS), dtype=np.int32)
        items[: self.num_items] = self.items[: self.num_items]
        return replace(self, items=items)

    def advance(self, rows: DecodeRows) -> bool:
        """Take over new bounds of the same sequences, cut as before; False, with nothing changed, if they must be cut
        anew: where a sequence's first or last chunk has become empty, or its last one has grown past its limit.
        """
        first, last = self.first_items[:-1], self.first_items[1:] - 1
        columns, begin = _bounds(rows)
        emptied = begin >= np.where(first == last, columns, self.items[first, 3])
        cut_anew = (columns > self.limits) | (columns <= self.items[last, 2]) | emptied
        still_empty = (columns == 0) & (self.items[last, 3] == 0)
        if bool((cut_anew & ~still_empty).any()):
            return False
        self.items[first, 2] = begin
        self.items[last, 3] = columns
        self.items[: self.num_items, 6] = np.repeat(columns, np.diff(self.first_items))
        return True


def chunk_length(lengths: Ints, max_items: int, least: int) -> int:
    """Columns in a chunk, a multiple of GRAIN and at least `least`, so that all sequences give at most `max_items`.

    `max_items` below the number of sequences counts as that number.
    """
    budget = max(max_items, len(lengths))
    length = max(least, GRAIN * -(-int(lengths.sum()) // (budget * GRAIN)))
    while int(np.maximum(-(-lengths // length), 1).sum()) > budget:
        length += max(GRAIN, length // 16 // GRAIN * GRAIN)
    return length


def build_work_list(rows: DecodeRows, *, chunk: int, capacity: int | None = None) -> WorkList:
    """Cut every sequence into equal parts of at most `chunk` columns.

    `capacity` pads the items for a launch geometry that has been captured; it must hold them.
    """
    columns, begin = _bounds(rows)
    num_rows = len(columns)
    origin = begin // GRAIN * GRAIN
    pieces = np.maximum(-(-(columns - origin) // chunk), 1)
    step = GRAIN * -(-(columns - origin) // (pieces * GRAIN))
    pieces = np.maximum(-(-(columns - origin) // np.maximum(step, 1)), 1)
    first_items = np.concatenate(([0], np.cumsum(pieces)))
    num_items = int(first_items[-1])
    assert capacity is None or num_items <= capacity, f"{num_items} items in a work list for {capacity}"
    items = np.zeros((capacity or num_items, ITEM_FIELDS), dtype=np.int32)
    sequence = np.repeat(np.arange(num_rows), pieces)
    place = np.arange(num_items) - first_items[sequence]
    cut = pieces > 1
    slots = np.where(cut, pieces, 0)
    first_slot = np.concatenate(([0], np.cumsum(slots)))
    live = items[:num_items]
    live[:, 0] = rows.first_query[sequence]
    live[:, 1] = rows.num_queries[sequence]
    live[:, 2] = np.maximum(origin[sequence] + place * step[sequence], begin[sequence])
    live[:, 3] = np.minimum(origin[sequence] + (place + 1) * step[sequence], columns[sequence])
    live[:, 4] = rows.table_begin[sequence]
    live[:, 5] = np.where(cut[sequence], first_slot[sequence] + place, -1)
    live[:, 6] = columns[sequence]
    live[:, 7] = sequence
    merges = np.stack((rows.first_query, rows.num_queries, first_slot[:-1], slots), axis=1).astype(np.int32)
    gaps = np.zeros((num_rows, GAP_FIELDS), dtype=np.int32)
    if rows.keep is not None and rows.skip is not None:
        gaps[:, 0], gaps[:, 1] = rows.keep, rows.skip
    # A chunk may double before it is worth another plan.
    limits = origin + pieces * step + np.maximum(step, chunk)
    return WorkList(items, merges, gaps, first_items, limits, int(first_slot[-1]))


def first_visible(columns: Ints, window: int | None, keep: Ints | None, skip: Ints | None) -> Ints:
    """First column that a query whose own column is the last of `columns` sees."""
    if window is None:
        return np.zeros_like(columns)
    gap = np.zeros_like(columns) if skip is None else skip
    position = np.maximum(columns - gap - window, 0)
    first: Ints = position if keep is None else position + np.where(position >= keep, gap, 0)
    return first


def _bounds(rows: DecodeRows) -> tuple[Ints, Ints]:
    """End and first visible column of every sequence; equal where it sees nothing."""
    columns = np.where(rows.num_queries > 0, np.maximum(rows.columns, 0), 0)
    return columns, np.clip(rows.first_column, 0, columns)
