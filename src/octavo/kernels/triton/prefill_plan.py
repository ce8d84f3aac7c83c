"""Which program of a paged prefill attends for which tokens. Plain numpy on the host: decides, launches nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.triton.decode_plan import Ints, first_visible

TILE_FIELDS = 8


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The sequences of a step, [R] each: `num_tokens` consecutive query rows from `first_query` on.

    The first of them is at position `start`; positions from `keep` on lie `skip` columns further in the block table,
    and no query before such a gap. `table_begin` is where column 0's block id lies in the flat table.
    """

    first_query: Ints
    num_tokens: Ints
    start: Ints
    table_begin: Ints
    keep: Ints | None = None
    skip: Ints | None = None

    @property
    def has_gaps(self) -> bool:
        return self.skip is not None and bool(self.skip.any())


def build_tiles(rows: PrefillRows, tokens: int, window: int | None) -> NDArray[np.int32]:
    """Query tiles [N, 8] int32 of at most `tokens` tokens, cut at absolute multiples; those that see most come first.

        first query row, tokens, column of the first, table offset, first visible column, keep, skip, whole tile's end

    The last field is where the columns of the tile would end if the chunk held all of its tokens.
    """
    stop = rows.start + rows.num_tokens
    first_tile = rows.start // tokens
    counts = np.where(rows.num_tokens > 0, -(-stop // tokens) - first_tile, 0)
    sequence = np.repeat(np.arange(len(counts)), counts)
    tile = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + first_tile[sequence]
    begin = np.maximum(tile * tokens, rows.start[sequence])
    end = np.minimum((tile + 1) * tokens, stop[sequence])
    keep = None if rows.keep is None else rows.keep[sequence]
    skip = None if rows.skip is None else rows.skip[sequence]
    gap = np.zeros_like(begin) if skip is None else skip
    if keep is not None:
        gap = np.where(begin >= keep, gap, 0)
    columns = begin + gap
    tiles = np.zeros((len(tile), TILE_FIELDS), dtype=np.int32)
    tiles[:, 0] = rows.first_query[sequence] + begin - rows.start[sequence]
    tiles[:, 1] = end - begin
    tiles[:, 2] = columns
    tiles[:, 3] = rows.table_begin[sequence]
    tiles[:, 4] = first_visible(columns + 1, window, keep, None if skip is None else gap)
    tiles[:, 5] = 0 if keep is None else keep
    tiles[:, 6] = gap
    tiles[:, 7] = (tile + 1) * tokens + gap
    order = np.argsort(-(tiles[:, 2] + tiles[:, 1] - tiles[:, 4]), kind="stable")
    ordered: NDArray[np.int32] = tiles[order]
    return ordered
