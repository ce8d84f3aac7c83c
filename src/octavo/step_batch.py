"""One engine step as plain data: what every rank plans from. Tensor-free and picklable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StorageKind(Enum):
    """Where a sequence keeps the K/V of its unbounded layers, chosen once at allocation."""

    DENSE = "dense"
    PAGED = "paged"


@dataclass(frozen=True, slots=True)
class FreshBlocks:
    """Block ids a group gained for this step: absolute blocks `first, first + 1, …` lie in `block_ids`."""

    group: int
    first: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One sequence's part of a step: `token_ids` at positions `start, start + 1, …`.

    `start` equals the tokens that storage holds before the step. `generation` changes whenever `slot` gets a new
    tenant, so a planner knows to forget the old table. `live_start` is, per group, the first position still
    held (0 where nothing was trimmed). `sample` asks for a token after the last of them.
    """

    slot: int
    generation: int
    storage: StorageKind
    token_ids: tuple[int, ...]
    start: int
    fresh: tuple[FreshBlocks, ...]
    live_start: tuple[int, ...]
    sample: bool

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step, in the order their tokens are packed."""

    rows: tuple[StepRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)
