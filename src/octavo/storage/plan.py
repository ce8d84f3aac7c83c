"""What one step does in one group of layers, decided once and then followed by each layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import AttentionSpan, plan_span
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.route import Route


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One sequence's part: tokens `[q0, q1)` of the packed step attend over `span` by `route`.

    `base` is the stored row of position 0 (dense) or the first row of the slot's ring of `window` rows (ring).
    `read_start` is where reading begins, and `block_ids` the blocks that cover `[read_start, span.hi)` (gather: a
    block boundary). `ring_rows` are where the last tokens of the step go, `ring_from` the first token that goes there.
    """

    q0: int
    q1: int
    route: Route
    span: AttentionSpan
    start: int
    read_start: int
    base: int = 0
    window: int = 0
    block_ids: Tensor | None = None
    ring_rows: Tensor | None = None
    ring_from: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Writes of a whole step into blocks, then the rows to attend.

    `tokens` selects the packed tokens that go to block rows `slot_mapping`; None means all of them. `slot_mapping`
    is None where nothing goes to blocks.
    """

    tokens: Tensor | None
    slot_mapping: Tensor | None
    rows: tuple[RowPlan, ...]


def plan_group(
    batch: StepBatch, group: int, spec: LayerSpec, tables: list[BlockTable], block_size: int, device: torch.device
) -> GroupPlan:
    """Route every row of `batch` for one group: dense rows of a windowed group take the ring."""
    rows: list[RowPlan] = []
    mappings: list[NDArray[np.int64]] = []
    token_ranges: list[tuple[int, int]] = []
    q0 = 0
    for row in batch.rows:
        q1 = q0 + row.num_tokens
        span = plan_span(row.start, row.stop, num_q_heads=spec.num_q_heads, window=spec.window, device=device)
        table = tables[row.slot]
        if row.storage is StorageKind.DENSE and spec.window is not None:
            rows.append(_ring_row(row, spec.window, span, q0, q1, device))
        else:
            mappings.append(table.slot_mapping(group, row.start, row.stop))
            token_ranges.append((q0, q1))
            if row.storage is StorageKind.DENSE:
                base = int(table.blocks(group, 0, 1)[0]) * block_size
                rows.append(RowPlan(q0, q1, Route.DENSE, span, row.start, span.lo, base=base))
            else:
                first = span.lo // block_size
                ids = torch.from_numpy(table.blocks(group, first, -(-row.stop // block_size)).copy()).to(device)
                rows.append(RowPlan(q0, q1, Route.GATHER, span, row.start, first * block_size, block_ids=ids))
        q0 = q1
    if not mappings:
        return GroupPlan(None, None, tuple(rows))
    slot_mapping = torch.from_numpy(np.concatenate(mappings)).to(device)
    tokens = None
    if len(mappings) < len(rows):
        tokens = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in token_ranges])).to(device)
    return GroupPlan(tokens, slot_mapping, tuple(rows))


def _ring_row(row: StepRow, window: int, span: AttentionSpan, q0: int, q1: int, device: torch.device) -> RowPlan:
    base = row.slot * window
    kept_from = max(row.start, row.stop - window)
    ring_rows = base + torch.arange(kept_from, row.stop, device=device) % window
    return RowPlan(
        q0,
        q1,
        Route.RING,
        span,
        row.start,
        span.lo,
        base=base,
        window=window,
        ring_rows=ring_rows,
        ring_from=q0 + kept_from - row.start,
    )
