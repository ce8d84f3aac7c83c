"""Who holds which block, drawn as cells of neighbouring blocks: for people who look, never for decisions.

Reads a `CachePool` between two steps and changes nothing.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo.cache.cache_pool import CachePool
from octavo.cache.sequence import GroupTable

BlockState = Literal["free", "live", "shared", "cached", "pinned"]
STATES: tuple[BlockState, ...] = ("free", "live", "shared", "cached", "pinned")
MAX_CELLS = 4096  # per group; in a larger pool a cell stands for several blocks
MAX_OWNERS = 8  # of a block that are named; its references tell how many there are
_FREE, _LIVE, _SHARED, _CACHED, _PINNED = range(len(STATES))
_NOBODY = -1

_Ints = NDArray[np.int64]


# Neighbouring cells that are alike: how many they are, and of each: state, owners, used, tokens, references.
# The state is an index into `STATES`: what most of its blocks are that are not free. Owners are an index into the
# group's, -1 where no request holds it. Used are its blocks that are not free; the tokens are those in them, the
# references those to them, the prefix cache's included. Plain tuples: thousands may be pickled between two steps.
CellRun = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class GroupMap:
    """One group's blocks in their order. `counts` are blocks by state, in the order of `STATES`.

    Live blocks have one holder beside the prefix cache, shared ones several; cached ones are held by the prefix cache
    alone, pinned ones by parked sequences and no request. `owners` are sets of request ids, of which at most
    `MAX_OWNERS` are named.
    """

    num_blocks: int
    block_size: int
    blocks_per_cell: int
    counts: tuple[int, ...]
    owners: tuple[tuple[str, ...], ...]
    runs: tuple[CellRun, ...]


def block_maps(pool: CachePool, max_cells: int = MAX_CELLS) -> tuple[GroupMap, ...]:
    """One map per group, of at most `max_cells` cells each. Reads every block."""
    return tuple(_GroupDrawing(pool, group).drawn(max_cells) for group in range(len(pool.groups)))


class _GroupDrawing:
    """Arrays over the blocks of one group."""

    def __init__(self, pool: CachePool, group: int) -> None:
        self._size = pool.block_size
        references, marks = pool.pools[group].holders()
        self._references: _Ints = np.array(array("q", references), np.int64)
        cached = np.array(memoryview(marks), np.uint8) != 0
        self._tokens: _Ints = np.where(cached, self._size, 0)
        self._owner: _Ints = np.full(len(references), _NOBODY, np.int64)
        self._sets: list[tuple[str, ...]] = []
        self._index: dict[tuple[str, ...], int] = {}
        for state in pool.sequences():
            held = self._fill(state.tables[group], state.written)
            self._own(held, state.seq_id)
            sources = [pending.copy.source for pending in state.copies if pending.copy.group == group]
            if sources:
                self._tokens[sources] = self._size
                self._own(np.array(sources, np.int64), state.seq_id)
        pinned = np.zeros(len(references), np.bool_)
        for parked in pool.parked_sequences():
            pinned[self._fill(parked.tables[group], parked.written)] = True
        users = self._references - cached
        self._state: _Ints = np.zeros(len(references), np.int64)
        self._state[cached] = _CACHED
        self._state[users == 1] = _LIVE
        self._state[users > 1] = _SHARED
        self._state[pinned & (self._owner == _NOBODY)] = _PINNED

    def drawn(self, max_cells: int) -> GroupMap:
        num_blocks = len(self._state)
        per_cell = max(1, -(-num_blocks // max_cells))
        return GroupMap(
            num_blocks=num_blocks,
            block_size=self._size,
            blocks_per_cell=per_cell,
            counts=tuple(np.bincount(self._state, minlength=len(STATES)).tolist()),
            owners=tuple(self._sets),
            runs=tuple(self._runs(per_cell)) if num_blocks else (),
        )

    def _fill(self, table: GroupTable, written: int) -> _Ints:
        """Note the tokens in a table's blocks, of which the last that is written may be in part; returns the ids."""
        ids = np.array(table.ids(0, len(table.block_ids)), np.int64)
        full, rest = divmod(written, self._size)
        stop = len(ids) - (len(table.block_ids) - full)  # what follows are the unfilled one and spare ones
        self._tokens[ids[:stop]] = self._size
        if rest:
            tail = ids[stop]
            self._tokens[tail] = max(self._tokens[tail], rest)
        return ids

    def _own(self, ids: _Ints, name: str) -> None:
        before = self._owner[ids]
        if not len(ids):
            return
        if before.max() == _NOBODY:
            self._owner[ids] = self._set_index((name,))
            return
        self._owner[ids[before == _NOBODY]] = self._set_index((name,))
        for index in np.unique(before[before != _NOBODY]).tolist():
            known = self._sets[index]
            if name not in known and len(known) < MAX_OWNERS:
                self._owner[ids[before == index]] = self._set_index((*known, name))

    def _set_index(self, names: tuple[str, ...]) -> int:
        index = self._index.setdefault(names, len(self._sets))
        if index == len(self._sets):
            self._sets.append(names)
        return index

    def _runs(self, per_cell: int) -> list[CellRun]:
        columns = self._summed(per_cell) if per_cell > 1 else self._single()
        changes = np.zeros(len(columns[0]), np.bool_)
        changes[0] = True
        for column in columns:
            changes[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(changes)
        lengths = np.diff(np.append(starts, len(changes)))
        return list(zip(lengths.tolist(), *(column[starts].tolist() for column in columns), strict=True))

    def _single(self) -> tuple[_Ints, ...]:
        """As `_summed`, of cells of one block each."""
        used = (self._state != _FREE).astype(np.int64)
        return self._state, self._owner, used, self._tokens, self._references

    def _summed(self, per_cell: int) -> tuple[_Ints, ...]:
        """State, owners, used blocks, tokens and references of each cell of several blocks."""
        state, owner = self._cells(self._state, per_cell, _FREE), self._cells(self._owner, per_cell, _NOBODY)
        kinds = np.stack([(state == kind).sum(axis=1) for kind in range(1, len(STATES))])
        used = kinds.sum(axis=0)
        most = np.where(used > 0, 1 + kinds.argmax(axis=0), _FREE)
        first = (state == most[:, None]).argmax(axis=1)  # the first block of that kind speaks for the cell
        return (
            most,
            owner[np.arange(len(owner)), first],
            used,
            self._cells(self._tokens, per_cell, 0).sum(axis=1),
            self._cells(self._references, per_cell, 0).sum(axis=1),
        )

    @staticmethod
    def _cells(blocks: _Ints, per_cell: int, padding: int) -> _Ints:
        """[cells, per_cell]"""
        short = -len(blocks) % per_cell
        return np.pad(blocks, (0, short), constant_values=padding).reshape(-1, per_cell)
