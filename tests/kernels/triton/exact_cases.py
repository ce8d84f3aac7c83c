"""Steps for tests of exact attention: a plan and a run for each, into poisoned memory."""

from __future__ import annotations

import numpy as np
import torch

from octavo.kernels.triton.exact_attention import ExactAttention, ExactTiles
from octavo.kernels.triton.paged_prefill import PrefillTile
from octavo.kernels.triton.prefill_plan import PrefillRows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


SMALL = ExactTiles(PrefillTile(16, 16, 4, 2), PrefillTile(32, 16, 4, 2))


def attend(case, steps, *, fixed=False, tiles=SMALL, **given):
    """[T, Hq, D] of one plan and run for each of `steps`; nothing that was there before may come through."""
    kernel = ExactAttention(case.spec, DEVICE, tiles=tiles, **{"part": 32, **given})
    out = torch.full(case.q.shape, float("nan"), dtype=case.out_dtype, device=DEVICE)
    sinks = None if case.sink_logits is None else case.sink_logits.to(DEVICE)
    k, v = case.stored()
    for rows in steps:
        kernel.plan(rows, fixed=fixed)
        kernel._partial.fill_(float("nan"))
        kernel._scalars.fill_(float("nan"))
        kernel.run(case.q.to(DEVICE), k, v, case.table.to(DEVICE), out, sinks)
    return out.cpu()


def one_by_one(case):
    """The tokens of every sequence as single rows, all sequences together."""
    (whole,) = case.chunks()
    most = int(whole.num_tokens.max())
    gap = {"keep": whole.keep, "skip": whole.skip}
    return [
        PrefillRows(
            whole.first_query + i,
            np.where(i < whole.num_tokens, 1, 0),
            whole.start + i,
            whole.table_begin,
            **gap,
        )
        for i in range(most)
    ]
