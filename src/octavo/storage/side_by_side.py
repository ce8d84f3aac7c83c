"""Which single tokens of a step are gathered together, and from where. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.attention_parts import MOST_GATHERED_BYTES
from octavo.kernels.chunked_attention import AttentionSpan
from octavo.step_batch import StepRow
from octavo.storage.block_table import BlockTable
from octavo.storage.scratch import Scratch, SpanViews


@dataclass(frozen=True, slots=True)
class SingleToken:
    """A row of one token, its place in the packed step, and its sequence's table."""

    row: StepRow
    place: int
    table: BlockTable

    def visible(self, window: int | None) -> tuple[int, int]:
        """Positions of the keys that it sees."""
        stop = self.row.rope_stop
        return 0 if window is None else max(0, stop - window), stop


@dataclass(frozen=True, slots=True)
class SideBySide:
    """R tokens, each of another sequence, over L keys each: `stored` [R · L] int64 are the rows of K/V that hold them.

    `places` [R] int64 are the tokens' in the packed step; None where they are all of it, in order. A sequence of fewer
    keys has its first one again, and `hidden` [R, L] bool marks these; None where there are none. `views` is where keys
    and values are gathered, one sequence after the other.
    """

    num_rows: int
    places: Tensor | None
    stored: Tensor
    hidden: Tensor | None
    views: SpanViews


def plan_side_by_side(
    tokens: list[SingleToken], group: int, spec: LayerSpec, scratch: Scratch, device: torch.device, *, alone: bool
) -> tuple[SideBySide, ...]:
    """As few as hold to `MOST_GATHERED_BYTES`, short sequences apart from long ones. `alone`: the step has no more."""
    most = MOST_GATHERED_BYTES // (spec.num_kv_heads * (spec.k_dim + spec.v_dim) * 4)
    lengths = [stop - first for first, stop in (token.visible(spec.window) for token in tokens)]
    if len(tokens) * max(lengths) <= most:
        return (_planned(tokens, group, spec, scratch, device, whole=alone),)
    parts: list[list[SingleToken]] = [[]]
    for i in np.argsort(lengths, kind="stable"):
        if parts[-1] and (len(parts[-1]) + 1) * lengths[i] > most:
            parts.append([])
        parts[-1].append(tokens[i])
    return tuple([_planned(part, group, spec, scratch, device, whole=False) for part in parts])


def _planned(
    tokens: list[SingleToken], group: int, spec: LayerSpec, scratch: Scratch, device: torch.device, *, whole: bool
) -> SideBySide:
    found = [token.table.slot_mapping(group, *token.visible(spec.window)) for token in tokens]
    length = max(len(rows) for rows in found)
    stored: NDArray[np.int64] = np.empty((len(tokens), length), dtype=np.int64)
    for line, rows in zip(stored, found, strict=True):
        line[: len(rows)] = rows
        line[len(rows) :] = rows[0]
    counts = np.array([len(rows) for rows in found])
    hidden = None if (counts == length).all() else np.arange(length) >= counts[:, None]
    span = AttentionSpan(0, stored.size, 0, stored.size, ())
    return SideBySide(
        len(tokens),
        None if whole else torch.tensor([token.place for token in tokens], device=device),
        torch.from_numpy(stored.reshape(-1)).to(device),
        None if hidden is None else torch.from_numpy(hidden).to(device),
        scratch.views(span, 0),
    )
