"""Which program of a paged prefill attends for which tokens. Plain numpy on the host: decides, launches nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.triton.decode_plan import Ints, first_visible

PART_FIELDS, MERGE_FIELDS = 10, 4


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


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """What the kernels read: `parts` [N, 10] and `merges` [M, 4], int32.

    part     first query row, tokens, column of the first, table offset, first column, end column, partial slot or -1,
             keep, skip, where the columns of the tile would end if the chunk held all of its tokens
    merge    first query row, tokens, first slot, slots
    """

    parts: NDArray[np.int32]
    merges: NDArray[np.int32]

    @property
    def num_slots(self) -> int:
        return int(self.merges[:, 3].sum())


def build_work(rows: PrefillRows, tokens: int, window: int | None, part: int, unit: int | None = None) -> PrefillWork:
    """Query tiles of at most `tokens` tokens, over parts of at most `part` columns: both cut at absolute multiples.

    A tile that sees columns of several parts is merged. Those parts that see most come first. What is decided for a
    tile is decided as for one of `unit` tokens, a multiple of `tokens`, so that tiles of several sizes agree.
    """
    unit = unit or tokens
    assert unit % tokens == 0, f"tiles of {tokens} tokens in units of {unit}"
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
    seen = first_visible(columns + 1, window, keep, None if skip is None else gap)
    stop_column = columns + end - begin
    # As if the chunk held all tokens of the unit: whether results are merged must not depend on where chunks end.
    whole = tile * tokens // unit * unit
    limit = whole + unit + gap
    first_part = first_visible(whole + gap + 1, window, keep, None if skip is None else gap) // part
    parts = -(-limit // part) - first_part
    of = np.repeat(np.arange(len(tile)), parts)
    place = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    slots = np.where(parts > 1, parts, 0)
    first_slot = np.cumsum(slots) - slots
    at = (first_part[of] + place) * part
    work = np.zeros((len(of), PART_FIELDS), dtype=np.int32)
    first_query = rows.first_query[sequence] + begin - rows.start[sequence]
    work[:, 0] = first_query[of]
    work[:, 1] = (end - begin)[of]
    work[:, 2] = columns[of]
    work[:, 3] = rows.table_begin[sequence][of]
    work[:, 4] = np.maximum(at, seen[of])
    work[:, 5] = np.minimum(at + part, stop_column[of])
    work[:, 6] = np.where(parts[of] > 1, first_slot[of] + place, -1)
    work[:, 7] = 0 if keep is None else keep[of]
    work[:, 8] = gap[of]
    work[:, 9] = limit[of]
    order = np.argsort(work[:, 4] - work[:, 5], kind="stable")
    merges = np.stack((first_query, end - begin, first_slot, slots), axis=1).astype(np.int32)
    return PrefillWork(work[order], merges[parts > 1])
