"""Chunks for tests of paged prefill: shuffled blocks, poisoned memory, and what a float64 oracle makes of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from octavo.kernels.triton.paged_prefill import PagedPrefill, PrefillTile
from octavo.kernels.triton.prefill_plan import PrefillRows
from tests.kernels.triton.decode_cases import DecodeCase

SMALL = PrefillTile(32, 16, 4, 2)


class PrefillCase(DecodeCase):
    """A decode case whose query rows are chunks of tokens."""

    def chunks(self, parts: int = 1) -> list[PrefillRows]:
        """The rows, each chunk in `parts` parts one after another."""
        counts = np.array(self.queries)
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        start = np.array(self.lengths) - counts
        edges = [counts * i // parts for i in range(parts + 1)]
        gap = {}
        if self.skip:
            gap = {"keep": np.full(len(counts), self.keep), "skip": np.full(len(counts), self.skip)}
        return [PrefillRows(first + a, b - a, start + a, self.rows.table_begin, **gap) for a, b in pairwise(edges)]

    def prefill(
        self, tile: PrefillTile | None = SMALL, parts: int = 1, part: int = 8192, poison: bool = False
    ) -> torch.Tensor:
        """[T, Hq, D] as the kernels give it, into an output that was poisoned, of chunks in `parts` parts.

        `part` is of columns. `poison` what is merged before it is written, too.
        """
        device = torch.device(self.device)
        kernel = PagedPrefill(self.spec, device, tile=tile, part=part)
        out = torch.full(self.q.shape, float("nan"), dtype=self.out_dtype, device=device)
        sinks = None if self.sink_logits is None else self.sink_logits.to(device)
        k, v = self.stored()
        for rows in self.chunks(parts):
            kernel.plan(rows)
            if poison:
                kernel._partial.fill_(float("nan"))
                kernel._lse.fill_(float("nan"))
            kernel.run(self.q.to(device), k, v, self.table.to(device), out, sinks)
        return out.cpu()
