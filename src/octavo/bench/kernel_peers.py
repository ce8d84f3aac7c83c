"""Decode attention of other libraries over the same loads: FlashInfer where it can be imported, and dense SDPA."""

from __future__ import annotations

import importlib
import itertools
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.bench.decode_setup import Call, DecodeSetup

_WORKSPACE = 512 << 20


def dense_sdpa(setup: DecodeSetup) -> list[Call]:
    """torch's scaled_dot_product_attention over contiguous K/V: no block table, so what paging may cost at most."""
    shape = setup.shape
    q = setup.q.view(len(setup.load.lengths), shape.num_q_heads, 1, shape.dim)

    def call(k: Tensor, v: Tensor) -> Call:
        return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return [call(*setup.dense(i)) for i in range(len(setup.keys))]


def flashinfer_version() -> str | None:
    """Version of FlashInfer; None where it is not installed."""
    if find_spec("flashinfer") is None:
        return None
    version: str = importlib.import_module("flashinfer").__version__
    return version


def flashinfer_paged(setup: DecodeSetup, *, tensor_cores: bool) -> list[Call]:
    """FlashInfer's paged decode. Raises what FlashInfer raises for shapes that it refuses."""
    flashinfer = importlib.import_module("flashinfer")
    shape, lengths, size = setup.shape, setup.load.lengths, setup.block_size
    blocks = [-(-length // size) for length in lengths]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(_WORKSPACE, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=tensor_cores
    )
    wrapper.plan(
        torch.tensor([0, *itertools.accumulate(blocks)], dtype=torch.int32),
        setup.table,
        torch.tensor([(length - 1) % size + 1 for length in lengths], dtype=torch.int32),
        shape.num_q_heads,
        shape.num_kv_heads,
        shape.dim,
        size,
        q_data_type=setup.q.dtype,
        kv_data_type=setup.q.dtype,
    )

    def call(i: int) -> Call:
        k, v = (rows[i].data.view(-1, size, shape.num_kv_heads, shape.dim) for rows in (setup.keys, setup.values))
        return lambda: wrapper.run(setup.q, (k, v))

    return [call(i) for i in range(len(setup.keys))]
