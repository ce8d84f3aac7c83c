"""What the bookkeeping knows of one sequence: how much is written, what is still held, in which blocks.

Owns the arithmetic of positions and blocks; `CachePool` alone mutates it and moves ids to and from the block pools.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from octavo.cache.prefix_cache import PrefixCursor
from octavo.cache.prefix_types import PrefixDomain
from octavo.cache.spec import CacheGroup
from octavo.step_batch import BlockCopy, FreshBlocks, StorageKind


class SequenceHandle(NamedTuple):
    """Names one tenancy of a slot. Generations of a slot only rise, so a handle of an earlier tenant never fits."""

    slot: int
    generation: int


@dataclass(slots=True)
class GroupTable:
    """One group's blocks of one sequence, indexed by absolute block: block b covers `[b * size, (b + 1) * size)`.

        block_ids   [ kept | None … None | held … held | spare ]
                           ^ hole_start  ^ hole_stop           ^ len
        positions          live_start lies in block hole_stop; written ends before the spare ones

    Kept blocks hold the sequence's `keep` front tokens. Entries of the hole were freed by front trims, or not taken
    from a cached prefix. Spare blocks are reserved, or left by a rolled-back append. The planner was told of blocks
    `[0, num_announced)`. Keys before `rotated_start` were hidden at the last context shift and not rotated with the
    others, so they may not be seen again.
    """

    block_ids: list[int | None]
    live_start: int
    hole_start: int
    hole_stop: int
    num_announced: int = 0
    rotated_start: int = 0

    @property
    def num_held(self) -> int:
        return len(self.block_ids) - (self.hole_stop - self.hole_start)

    def ids(self, first: int, stop: int) -> tuple[int, ...]:
        """Block ids of absolute blocks `[first, stop)`, leaving out holes."""
        if self.hole_start == self.hole_stop or first >= self.hole_stop:
            return tuple(self.block_ids[first:stop])  # type: ignore[arg-type]  # only the hole has None
        return tuple([block_id for block_id in self.block_ids[first:stop] if block_id is not None])

    def drop_front(self, live_start: int, block_size: int) -> tuple[int, ...]:
        """Show nothing between the kept tokens and `live_start`; returns the whole blocks that this gives up."""
        self.live_start = live_start
        stop = max(self.hole_stop, live_start // block_size)
        dropped = self.ids(self.hole_stop, stop)
        self.block_ids[self.hole_stop : stop] = [None] * (stop - self.hole_stop)
        self.hole_stop = stop
        return dropped

    def announce(self, group: int, stop: int) -> list[FreshBlocks]:
        """The blocks before `stop` that the planner was not told of, now told; holes leave a gap between runs."""
        first = self.num_announced
        if first >= stop:
            return []
        self.num_announced = stop
        if self.hole_start == self.hole_stop or first >= self.hole_stop:
            return [FreshBlocks(group, first, self.ids(first, stop))]
        runs = [(first, min(stop, self.hole_start)), (max(first, self.hole_stop), stop)]
        return [FreshBlocks(group, a, self.ids(a, b)) for a, b in runs if a < b]

    def copy(self) -> GroupTable:
        """The same blocks, of which no planner was told."""
        return replace(self, block_ids=list(self.block_ids), num_announced=0)


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A block that has to be copied before the sequence writes on from position `written`.

    `index` is the target's absolute block. The sequence holds a reference to the source until a later append shows
    that the step which made the copy ran.
    """

    copy: BlockCopy
    index: int
    written: int


@dataclass(slots=True)
class SequenceState:
    """One live sequence.

    `written` counts the tokens that storage holds or held: a front trim does not lower it, a tail trim does.
    `keep` tokens at the front outlive front trims. `live_start` (per group, in its table) is the first position
    after those that is still visible, so it is never below `keep`. `rope_offset` is what context shifts have taken
    off the rotary position of later tokens; of `max_tokens` a sequence can hold, those that were dropped do not count.
    Blocks for `promised` of these are set aside, `promised_blocks` per group, whether it has them already or not.
    `adopted` tokens were there when it began. `domain` is None for a sequence that gives nothing to the prefix cache;
    `cursor` is how much it has given.
    """

    seq_id: str
    handle: SequenceHandle
    storage: StorageKind
    max_tokens: int
    keep: int
    tables: tuple[GroupTable, ...]
    promised: int = 0
    promised_blocks: tuple[int, ...] = ()
    written: int = 0
    rope_offset: int = 0
    adopted: int = 0
    domain: PrefixDomain | None = None
    cursor: PrefixCursor | None = None
    copies: list[PendingCopy] = field(default_factory=list)

    @property
    def rope_position(self) -> int:
        """Rotary position of the next token."""
        return self.written - self.rope_offset

    @property
    def live_start(self) -> tuple[int, ...]:
        """Per group, the first position still visible after the kept ones."""
        return tuple([table.live_start for table in self.tables])

    def visible(self, group: int) -> int:
        """Tokens that the group still shows: `keep + written - live_start`."""
        return self.keep + self.written - self.tables[group].live_start

    def first_visible(self, group: CacheGroup, written: int) -> int:
        """First position after the kept ones that the token at position `written` sees."""
        return max(self.keep + self.rope_offset, group.spec.first_visible(written))

    def tail_block(self, group: int, block_size: int) -> int | None:
        """The block that the next token is written into, if tokens are in it already."""
        index, filled = divmod(self.written, block_size)
        ids = self.tables[group].block_ids
        return ids[index] if filled and index < len(ids) else None

    def can_rewind(self, group: int, spec_group: CacheGroup, written: int, block_size: int) -> bool:
        """True if all that the token at position `written` attends to is still held in `group`, and rotated."""
        table = self.tables[group]
        if self.rope_offset and written < self.keep + self.rope_offset:
            return False
        held = table.hole_stop * block_size if table.hole_start < table.hole_stop else 0
        return self.first_visible(spec_group, written) >= max(held, table.rotated_start)

    def rewind(self, groups: tuple[CacheGroup, ...], written: int, block_size: int) -> None:
        """Lower `written`, show again what the next token sees, and have blocks past the end announced again.

        Every group must satisfy `can_rewind`. Block ids stay where they are.
        """
        self.written = written
        num_blocks = -(-written // block_size)
        if written <= self.adopted:
            self.adopted = written
            num_blocks = 0  # perhaps the planner never heard of those it began with
        for table, group in zip(self.tables, groups, strict=True):
            table.live_start = min(table.live_start, self.first_visible(group, written))
            table.num_announced = min(table.num_announced, num_blocks)
        if self.cursor is not None and self.cursor.stop * block_size > written:
            self.cursor = None
        # A copy that is made again is made before the rows from here on are written again, never after.
        self.copies = [replace(pending, written=min(pending.written, written)) for pending in self.copies]

    @property
    def unmade_copies(self) -> list[PendingCopy]:
        """Those that no step is known to have made."""
        return [pending for pending in self.copies if pending.written >= self.written]
