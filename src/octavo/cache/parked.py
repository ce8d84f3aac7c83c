"""A sequence's blocks without a slot: held for later, for one heir or several. Owns no reference by itself."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.prefix_cache import PrefixCursor
from octavo.cache.prefix_types import PrefixDomain, Snapshot
from octavo.cache.sequence import GroupTable, SequenceState
from octavo.step_batch import StorageKind


@dataclass(frozen=True, eq=False, slots=True)
class ParkedSequence:
    """What `CachePool.detach` and `pin` hand out. Its blocks stay in their pools until `unpark` or `drop`.

    `written`, `keep` and `rope_offset` are as of the sequence it was; `snapshot` is what storage keeps outside of
    blocks, None where it keeps nothing there.
    """

    key: int
    storage: StorageKind
    max_tokens: int
    keep: int
    written: int
    rope_offset: int
    tables: tuple[GroupTable, ...]
    domain: PrefixDomain | None
    cursor: PrefixCursor | None
    snapshot: Snapshot | None

    @classmethod
    def of(cls, key: int, state: SequenceState, num_blocks: int, snapshot: Snapshot | None) -> ParkedSequence:
        """The first `num_blocks` blocks of every table of `state` (a dense run stays whole)."""
        tables = tuple([table.copy() for table in state.tables])
        if state.storage is StorageKind.PAGED:
            for table in tables:
                del table.block_ids[num_blocks:]
        return cls(
            key=key,
            storage=state.storage,
            max_tokens=state.max_tokens,
            keep=state.keep,
            written=state.written,
            rope_offset=state.rope_offset,
            tables=tables,
            domain=state.domain,
            cursor=state.cursor,
            snapshot=snapshot,
        )
