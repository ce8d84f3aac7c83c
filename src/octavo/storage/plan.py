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
from octavo.storage.side_by_side import SideBySide, SingleToken, plan_side_by_side


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
    """Writes of a whole step into blocks (None: everything goes to rings), then the rows to attend one by one, and
    those to attend `together`.
    """

    num_tokens: int
    writes: BlockWrites | None
    rows: tuple[RowPlan, ...]
    together: tuple[SideBySide, ...]
    routes: tuple[Route, ...]


def plan_group(
    batch: StepBatch,
    group: int,
    spec: LayerSpec,
    tables: list[BlockTable],
    block_size: int,
    scratch: Scratch,
    device: torch.device,
    *,
    side_by_side: bool,
) -> GroupPlan:
    """Route every row of `batch` for one group: dense rows of a windowed group take the ring.

    `side_by_side`: others of one token are attended to together.
    """
    rows: list[RowPlan] = []
    singles: list[SingleToken] = []
    routes: list[Route] = []
    mappings: list[NDArray[np.int64]] = []
    tokens: list[NDArray[np.int64]] = []
    q0 = 0
    for row in batch.rows:
        q1 = q0 + row.num_tokens
        table = tables[row.slot]
        routes.append(_route(row, spec))
        if routes[-1] is not Route.RING:
            mappings.append(table.slot_mapping(group, row.rope_start, row.rope_stop))
            tokens.append(np.arange(q0, q1))
        if side_by_side and row.num_tokens == 1 and routes[-1] is not Route.RING:
            singles.append(SingleToken(row, q0, table))
        else:
            span = plan_span(
                row.rope_start, row.rope_stop, num_q_heads=spec.num_q_heads, window=spec.window, device=device
            )
            rows.append(_row_plan(row, q0, group, spec, table, routes[-1], span, block_size, scratch, device))
        q0 = q1
    together = plan_side_by_side(singles, group, spec, scratch, device, alone=not rows) if singles else ()
    everything = len(mappings) == len(routes)
    writes = _block_writes(mappings, None if everything else tokens, device) if mappings else None
    return GroupPlan(q0, writes, tuple(rows), together, tuple(routes))


def _route(row: StepRow, spec: LayerSpec) -> Route:
    if row.storage is not StorageKind.DENSE:
        return Route.GATHER
    return Route.DENSE if spec.window is None else Route.RING


def _row_plan(
    row: StepRow,
    q0: int,
    group: int,
    spec: LayerSpec,
    table: BlockTable,
    route: Route,
    span: AttentionSpan,
    block_size: int,
    scratch: Scratch,
    device: torch.device,
) -> RowPlan:
    if route is Route.GATHER:
        return gather_plan(row, q0, group, table, span, scratch, device)
    q1, views = q0 + row.num_tokens, scratch.views(span, span.lo)
    if route is Route.DENSE:
        base = int(table.blocks_before(group, 1)[0]) * block_size
        return RowPlan(q0, q1, route, span, views, row.start, span.lo, base=base)
    assert spec.window is not None
    return RowPlan(q0, q1, route, span, views, row.start, span.lo, ring=ring_plan(row, spec.window, q0, device))


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
