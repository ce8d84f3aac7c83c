"""What the bookkeeping knows of one sequence: how much is written, what is still held, in which blocks.

Owns the arithmetic of positions and blocks; `CachePool` alone mutates it and moves ids to and from the block pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo.cache.spec import CacheGroup
from octavo.step_batch import StorageKind


class SequenceHandle(NamedTuple):
    """Names one tenancy of a slot. Generations of a slot only rise, so a handle of an earlier tenant never fits."""

    slot: int
    generation: int


@dataclass(slots=True)
class GroupTable:
    """One group's blocks of one sequence, indexed by absolute block: block b covers `[b * size, (b + 1) * size)`.

        block_ids   [ kept | None … None | held … held | spare ]
                           ^ keep        ^ hole_stop           ^ len
        positions          live_start lies in block hole_stop; written ends before the spare ones

    Kept blocks hold the sequence's `keep` front tokens. Entries of the hole were freed by front trims. Spare blocks
    are reserved, or left by a rolled-back append. The planner was told of blocks `[0, num_announced)`.
    """

    block_ids: list[int | None]
    live_start: int
    hole_start: int
    hole_stop: int
    num_announced: int = 0

    @property
    def num_held(self) -> int:
        return len(self.block_ids) - (self.hole_stop - self.hole_start)

    def ids(self, first: int, stop: int) -> tuple[int, ...]:
        """Block ids of absolute blocks `[first, stop)`, leaving out holes."""
        return tuple([block_id for block_id in self.block_ids[first:stop] if block_id is not None])


@dataclass(slots=True)
class SequenceState:
    """One live sequence.

    `written` counts the tokens that storage holds or held: a front trim does not lower it, a tail trim does.
    `keep` tokens at the front outlive front trims. `live_start` (per group, in its table) is the first position
    after those that is still visible, so it is never below `keep`. `rope_offset` is what context shifts have taken
    off the rotary position of later tokens.
    """

    seq_id: str
    handle: SequenceHandle
    storage: StorageKind
    max_tokens: int
    keep: int
    tables: tuple[GroupTable, ...]
    written: int = 0
    rope_offset: int = 0

    @property
    def rope_position(self) -> int:
        """Rotary position of the next token."""
        return self.written - self.rope_offset

    def visible(self, group: int) -> int:
        """Tokens that the group still shows: `keep + written - live_start`."""
        return self.keep + self.written - self.tables[group].live_start

    def can_rewind(self, group: int, spec_group: CacheGroup, written: int, block_size: int) -> bool:
        """True if all that the token at position `written` attends to is still held in `group`."""
        table = self.tables[group]
        if table.hole_start == table.hole_stop:
            return True
        return spec_group.spec.first_visible(written) >= table.hole_stop * block_size

    def rewind(self, groups: tuple[CacheGroup, ...], written: int, block_size: int) -> None:
        """Lower `written`, show again what the next token sees, and have blocks past the end announced again.

        Every group must satisfy `can_rewind`. Block ids stay where they are.
        """
        self.written = written
        num_blocks = -(-written // block_size)
        for table, group in zip(self.tables, groups, strict=True):
            table.live_start = min(table.live_start, max(self.keep, group.spec.first_visible(written)))
            table.num_announced = min(table.num_announced, num_blocks)
