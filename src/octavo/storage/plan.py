"""What one step does in one group of layers, decided once and then followed by each layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import AttentionSpan, plan_span
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.route import Route
from octavo.storage.scratch import Scratch, SpanViews


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Where a row finds and leaves its window: `base` is the first of the slot's `window` ring rows.

    `rows` are where the last tokens of the step go, and `first_token` is the first packed token that goes there.
    """

    base: int
    window: int
    rows: Tensor
    first_token: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Stored rows `[start, stop)` that come one after another in the sequence, from the `at`-th that is read on."""

    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One sequence's part: tokens `[q0, q1)` of the packed step, the first at position `start`, attend over `span`.

    Positions are those of `StepRow.rope_start`: they count what context shifts have left. `read_start` is where
    reading begins. `base` is the stored row of position 0 (dense); `block_ids` are the blocks that cover
    `[read_start, span.hi)` (gather: `read_start` is a block boundary), or, after a context shift, `pieces` do.
    """

    q0: int
    q1: int
    route: Route
    span: AttentionSpan
    views: SpanViews
    start: int
    read_start: int
    base: int = 0
    block_ids: Tensor | None = None
    pieces: tuple[Piece, ...] | None = None
    ring: RingPlan | None = None


@dataclass(frozen=True, slots=True)
class BlockWrites:
    """Which packed tokens go to which block rows: `tokens` (None: all of them) to `rows`.

    Where all tokens go to consecutive rows, `run` is the first of them, and `rows` is not needed.
    """

    tokens: Tensor | None
    rows: Tensor
    run: int | None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Writes of a whole step into blocks (None: everything goes to rings), then the rows to attend."""

    writes: BlockWrites | None
    rows: tuple[RowPlan, ...]


def plan_group(
    batch: StepBatch,
    group: int,
    spec: LayerSpec,
    tables: list[BlockTable],
    block_size: int,
    scratch: Scratch,
    device: torch.device,
) -> GroupPlan:
    """Route every row of `batch` for one group: dense rows of a windowed group take the ring."""
    rows: list[RowPlan] = []
    mappings: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    q0 = 0
    for row in batch.rows:
        q1 = q0 + row.num_tokens
        span = plan_span(row.rope_start, row.rope_stop, num_q_heads=spec.num_q_heads, window=spec.window, device=device)
        table = tables[row.slot]
        if row.storage is StorageKind.DENSE and spec.window is not None:
            ring = ring_plan(row, spec.window, q0, device)
            rows.append(RowPlan(q0, q1, Route.RING, span, scratch.views(span, span.lo), row.start, span.lo, ring=ring))
        else:
            mappings.append(table.slot_mapping(group, row.rope_start, row.rope_stop))
            tokens.append(np.arange(q0, q1))
            if row.storage is StorageKind.DENSE:
                base = int(table.blocks_before(group, 1)[0]) * block_size
                views = scratch.views(span, span.lo)
                rows.append(RowPlan(q0, q1, Route.DENSE, span, views, row.start, span.lo, base=base))
            else:
                rows.append(gather_plan(row, q0, group, table, span, scratch, device))
        q0 = q1
    if not mappings:
        return GroupPlan(None, tuple(rows))
    everything = len(mappings) == len(rows)
    return GroupPlan(_block_writes(mappings, None if everything else tokens, device), tuple(rows))


def _block_writes(
    mappings: list[NDArray[np.int64]], tokens: list[NDArray[np.int64]] | None, device: torch.device
) -> BlockWrites:
    mapping = np.concatenate(mappings)
    consecutive = bool((mapping == mapping[0] + np.arange(len(mapping))).all())
    return BlockWrites(
        tokens=None if tokens is None else torch.from_numpy(np.concatenate(tokens)).to(device),
        rows=torch.from_numpy(mapping).to(device),
        run=int(mapping[0]) if consecutive and tokens is None else None,
    )


def gather_plan(
    row: StepRow, q0: int, group: int, table: BlockTable, span: AttentionSpan, scratch: Scratch, device: torch.device
) -> RowPlan:
    """How the keys and values of a paged row, whose first packed token is `q0`, are gathered."""
    q1, start, size = q0 + row.num_tokens, row.rope_start, table.block_size
    if table.skip:
        views, pieces = scratch.views(span, span.lo), pieces_of(table.slot_mapping(group, span.lo, span.hi))
        return RowPlan(q0, q1, Route.GATHER, span, views, start, span.lo, pieces=pieces)
    first = span.lo // size
    ids = torch.from_numpy(table.blocks_before(group, span.hi)[first:]).to(device)
    views = scratch.views(span, first * size)
    return RowPlan(q0, q1, Route.GATHER, span, views, start, first * size, block_ids=ids)


def pieces_of(mapping: NDArray[np.int64]) -> tuple[Piece, ...]:
    """Runs of consecutive stored rows."""
    edges = [0, *(np.flatnonzero(np.diff(mapping) != 1) + 1).tolist(), len(mapping)]
    return tuple([Piece(int(mapping[a]), int(mapping[a]) + b - a, a) for a, b in pairwise(edges)])


def ring_plan(row: StepRow, window: int, q0: int, device: torch.device) -> RingPlan:
    """Ring rows of a step whose first packed token is `q0`."""
    base = row.slot * window
    kept_from = max(row.start, row.stop - window)
    rows = base + torch.arange(kept_from, row.stop, device=device) % window
    return RingPlan(base, window, rows, q0 + kept_from - row.start)
