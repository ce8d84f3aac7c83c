"""Inputs of one decode load on a CUDA device: copies of K/V in shuffled blocks, and the calls that attend over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.bench.kernel_loads import DecodeLoad, HeadShape
from octavo.kernels.triton.decode_plan import DecodeRows
from octavo.kernels.triton.decode_tiles import DecodeTile
from octavo.kernels.triton.exact_attention import ExactAttention
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode, StoredRows
from octavo.kernels.triton.prefill_plan import PrefillRows
from octavo.storage.codecs import CODECS

LEAST_BYTES = 480 << 20  # K/V that a graph walks over: many times the level-2 cache
_MOST_COPIES = 96

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """`keys` and `values` hold one tensor or set of planes per copy; `table` [blocks] int32 serves them all."""

    shape: HeadShape
    load: DecodeLoad
    block_size: int
    codecs: tuple[str, str]
    q: Tensor
    keys: list[StoredRows]
    values: list[StoredRows]
    table: Tensor

    @classmethod
    def make(
        cls,
        shape: HeadShape,
        load: DecodeLoad,
        *,
        block_size: int = 16,
        codecs: tuple[str, str] = ("f16", "f16"),
        dtype: torch.dtype = torch.float16,
        least_bytes: int = LEAST_BYTES,
    ) -> DecodeSetup:
        """Random K/V; every copy is another part of memory, in all at least `least_bytes` (and 4 copies or more)."""
        blocks = sum(-(-length // block_size) for length in load.lengths)
        size = sum(CODECS[name].bytes_per_row(shape.dim) for name in codecs)
        one = blocks * block_size * shape.num_kv_heads * size
        copies = max(2 if one > 2 << 30 else 4, min(_MOST_COPIES, math.ceil(least_bytes / one)))
        sides = [[_random_rows(blocks * block_size, shape, codec, dtype) for _ in range(copies)] for codec in codecs]
        table = torch.randperm(blocks, device="cuda").int()
        q = torch.randn(len(load.lengths), shape.num_q_heads, shape.dim, device="cuda", dtype=dtype)
        return cls(shape, load, block_size, codecs, q, sides[0], sides[1], table)

    @property
    def kv_bytes(self) -> int:
        """Stored bytes of K and V of all tokens."""
        size = sum(CODECS[name].bytes_per_row(self.shape.dim) for name in self.codecs)
        return sum(self.load.lengths) * self.shape.num_kv_heads * size

    def rows(self) -> DecodeRows:
        lengths = np.array(self.load.lengths, dtype=np.int64)
        blocks = -(-lengths // self.block_size)
        return DecodeRows(
            first_query=np.arange(len(lengths)),
            num_queries=np.ones(len(lengths), dtype=np.int64),
            first_column=np.zeros(len(lengths), dtype=np.int64),
            columns=lengths,
            table_begin=np.cumsum(blocks) - blocks,
        )

    def fused(
        self,
        *,
        tile: DecodeTile | None = None,
        chunk: int | None = None,
        precise: bool | None = None,
    ) -> tuple[list[Call], Tensor]:
        """Our calls, one per copy, and their output [R, Hq, D]."""
        decode = PagedDecode(self._spec, torch.device("cuda"))
        decode.plan(self.rows(), tile=tile, chunk=chunk, precise=precise)
        out = torch.empty_like(self.q)
        return [
            lambda k=k, v=v: decode.run(self.q, k, v, self.table, out)  # type: ignore[misc]
            for k, v in zip(self.keys, self.values, strict=True)
        ], out

    def exact(self) -> tuple[list[Call], Tensor]:
        """`fused` with what serves `--exact`."""
        rows = self.rows()
        kernel = ExactAttention(self._spec, torch.device("cuda"))
        kernel.plan(PrefillRows(rows.first_query, rows.num_queries, rows.columns - 1, rows.table_begin))
        out = torch.empty_like(self.q)
        return [
            lambda k=k, v=v: kernel.run(self.q, k, v, self.table, out)  # type: ignore[misc]
            for k, v in zip(self.keys, self.values, strict=True)
        ], out

    @property
    def _spec(self) -> DecodeSpec:
        shape = self.shape
        return DecodeSpec(
            shape.num_q_heads, shape.num_kv_heads, shape.dim, shape.dim, self.block_size, *self.codecs,
            scale=1 / math.sqrt(shape.dim),
        )  # fmt: skip

    def dense(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V [R, Hkv, S, D] of one copy, contiguous, of an even load stored in a floating dtype."""
        shape, num = self.shape, len(self.load.lengths)
        picked = []
        for rows in (self.keys[index].data, self.values[index].data):
            blocks = rows.view(-1, self.block_size, shape.num_kv_heads, shape.dim)[self.table.long()]
            picked.append(blocks.view(num, -1, shape.num_kv_heads, shape.dim).transpose(1, 2).contiguous())
        return picked[0], picked[1]


def _random_rows(num_rows: int, shape: HeadShape, codec: str, dtype: torch.dtype) -> StoredRows:
    device = torch.device("cuda")
    if CODECS[codec].name in ("f16", "bf16", "f32"):
        return StoredRows(torch.randn(num_rows, shape.num_kv_heads, shape.dim, device=device, dtype=dtype), None)
    store = CODECS[codec].allocate(num_rows, shape.num_kv_heads, shape.dim, device)
    step = max(1, (64 << 20) // (shape.num_kv_heads * shape.dim))  # encoding takes float32 temporaries
    for start in range(0, num_rows, step):
        count = min(step, num_rows - start)
        store.write_run(start, torch.randn(count, shape.num_kv_heads, shape.dim, device=device))
    return StoredRows.of(store.planes())
