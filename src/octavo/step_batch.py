"""One engine step as plain data: what every rank plans from. Tensor-free and picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class StorageKind(Enum):
    """Where a sequence keeps the K/V of its unbounded layers, chosen once at allocation."""

    DENSE = "dense"
    PAGED = "paged"


class FreshBlocks(NamedTuple):
    """Block ids a group gained for this step: absolute blocks `first, first + 1, …` lie in `block_ids`."""

    group: int
    first: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Before anything of the step is written, all rows of block `source` of a group go to block `target`.

    `serial` tells one copy from every other of a pool, also from a later one between the same blocks: a step that is
    planned again names the copies that it has made already.
    """

    group: int
    source: int
    target: int
    serial: int = field(compare=False)


class StepRow(NamedTuple):
    """One sequence's part of a step: `token_ids` at positions `start, start + 1, …`.

    `start` equals the tokens that storage holds before the step; a new tenant's may be above 0, where `fresh` names
    the blocks that hold its cached prefix. `generation` changes whenever `slot` gets a new
    tenant, so a planner knows to forget the old table. `live_start` is, per group, the first position still
    held (0 where nothing was trimmed). `sample` asks for a token after the last of them.

    Context shifts have left `keep` tokens at the front and those from position `keep + rope_offset` on. What is left
    counts from 0 without a gap, and so do rotary positions: they are `rope_offset` (0 before any shift) below `start`.
    """

    slot: int
    generation: int
    storage: StorageKind
    token_ids: tuple[int, ...]
    start: int
    fresh: tuple[FreshBlocks, ...]
    live_start: tuple[int, ...]
    sample: bool
    keep: int = 0
    rope_offset: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def rope_start(self) -> int:
        """Rotary position of the first token: how many tokens before it were not dropped."""
        return self.start - self.rope_offset

    @property
    def rope_stop(self) -> int:
        return self.stop - self.rope_offset


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step, in the order their tokens are packed. `copies` are made before, in their order."""

    rows: tuple[StepRow, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    def copies_by_row(self) -> list[tuple[StepRow, list[BlockCopy]]]:
        """Whose blocks the step copies into: what a row has copied is among what it says it gained."""
        if not self.copies:
            return []
        owners = {(fresh.group, block): row for row in self.rows for fresh in row.fresh for block in fresh.block_ids}
        copies: dict[int, tuple[StepRow, list[BlockCopy]]] = {}
        for copy in self.copies:
            row = owners[copy.group, copy.target]
            copies.setdefault(row.slot, (row, []))[1].append(copy)
        return list(copies.values())
