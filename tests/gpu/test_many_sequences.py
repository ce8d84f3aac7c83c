"""Report R053 on a GPU: a decode of more sequences than a grid's second dimension may have leaves none out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.decode_plan import DecodeRows
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode, StoredRows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

BLOCK, DIM, HEADS = 16, 64, 2


@pytest.mark.parametrize("count", [65_535, 65_536, 70_001])
def test_r053_more_sequences_than_a_grid_may_have_parts_are_all_decoded(count: int) -> None:
    generator = torch.Generator("cuda").manual_seed(count)
    k, v = (
        torch.randn(count * BLOCK, 1, DIM, dtype=torch.float16, device="cuda", generator=generator) for _ in range(2)
    )
    q = torch.randn(count, HEADS, DIM, device="cuda", generator=generator)
    order = torch.randperm(count, device="cuda", generator=generator)
    rows = DecodeRows(
        first_query=np.arange(count),
        num_queries=np.ones(count, dtype=np.int64),
        first_column=np.zeros(count, dtype=np.int64),
        columns=np.full(count, BLOCK),
        table_begin=np.arange(count),
    )
    decode = PagedDecode(DecodeSpec(HEADS, 1, DIM, DIM, BLOCK, "f16", "f16", scale=DIM**-0.5), torch.device("cuda"))
    out = torch.full_like(q, float("nan"))
    work = decode.plan(rows)
    assert len(work.items) == count
    decode.run(q, StoredRows(k, None), StoredRows(v, None), order.int(), out)
    torch.cuda.synchronize()
    keys, values = (x.view(count, BLOCK, DIM)[order].float() for x in (k, v))
    weights = torch.softmax(q @ keys.transpose(1, 2) * DIM**-0.5, dim=-1)
    assert (out - weights @ values).abs().max() < 5e-4
