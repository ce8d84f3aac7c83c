"""Sequences for tests of paged decode: shuffled blocks, poisoned memory, and what a float64 oracle makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from octavo.kernels import reference
from octavo.kernels.triton.decode_plan import DecodeRows, first_visible
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode, StoredRows
from octavo.storage.codecs import CODECS


@dataclass
class DecodeCase:
    """`lengths` are visible tokens per sequence after its own, `queries` its query rows (0: padding).

    `beyond` blocks of poison lie behind the pool in memory, for kernels that would read them.
    """

    lengths: list[int]
    queries: list[int] | None = None
    hq: int = 4
    hkv: int = 2
    dim: int = 64
    block_size: int = 16
    k_codec: str = "f16"
    v_codec: str = "f16"
    q_dtype: torch.dtype = torch.float32
    out_dtype: torch.dtype = torch.float32
    window: int | None = None
    sinks: bool = False
    keep: int = 0
    skip: int = 0
    device: str = "cpu"
    seed: int = 0
    spare_blocks: int = 3
    beyond: int = 0
    table: torch.Tensor = field(init=False)

    def __post_init__(self):
        gen = torch.Generator().manual_seed(self.seed)
        self.queries = self.queries or [1] * len(self.lengths)
        self.columns = [n + self.skip if n > self.keep else n for n in self.lengths]
        blocks = [-(-max(n, 0) // self.block_size) for n in self.columns]
        span = max([*blocks, 1]) + 1  # every slot owns a fixed span of the table
        num_blocks = sum(blocks) + self.spare_blocks
        perm = torch.randperm(num_blocks, generator=gen)
        self.table = torch.full((len(blocks) * span,), 2**31 - 1, dtype=torch.int32)
        self.spec = DecodeSpec(
            self.hq, self.hkv, self.dim, self.dim, self.block_size, self.k_codec, self.v_codec,
            scale=1 / math.sqrt(self.dim), window=self.window,
        )  # fmt: skip
        device = torch.device(self.device)
        self.store, self.decoded = [], []
        for codec in (self.k_codec, self.v_codec):
            self.store.append(CODECS[codec].allocate(num_blocks * self.block_size, self.hkv, self.dim, device))
            for plane in self.store[-1].planes().values():  # unwritten memory must not matter
                plane.fill_(poison(plane))
            self.decoded.append([])
        used = 0
        for r, (n, count) in enumerate(zip(self.columns, blocks, strict=True)):
            ids = perm[used : used + count]
            used += count
            self.table[r * span : r * span + count] = ids.int()
            column = torch.arange(max(n, 0))
            column = column[(column < self.keep) | (column >= self.keep + self.skip)]
            rows = ids[column // self.block_size] * self.block_size + column % self.block_size
            for store, decoded in zip(self.store, self.decoded, strict=True):
                x = torch.randn(len(rows), self.hkv, self.dim, generator=gen)
                back = torch.empty(self.hkv, count * self.block_size, self.dim, device=device)
                if len(rows):
                    store.write(rows.to(device), x.to(device))
                    store.read_blocks(ids.to(device), self.block_size, back)
                decoded.append(back.transpose(0, 1).cpu()[column].double())
        total = sum(self.queries)
        self.q = torch.randn(total, self.hq, self.dim, generator=gen).to(self.q_dtype)
        self.sink_logits = torch.randn(self.hq, generator=gen) if self.sinks else None
        columns = np.array(self.columns)
        counts = np.array(self.queries)
        gap = {}
        if self.skip:
            gap = {
                "keep": np.full(len(columns), self.keep),
                "skip": np.where(np.array(self.lengths) > self.keep, self.skip, 0),
            }
        first = first_visible(np.maximum(columns - counts + 1, 0), self.window, gap.get("keep"), gap.get("skip"))
        self.rows = DecodeRows(
            first_query=np.concatenate(([0], np.cumsum(counts)[:-1])),
            num_queries=counts,
            first_column=first,
            columns=columns,
            table_begin=np.arange(len(columns)) * span,
            **gap,
        )

    def expected(self):
        """[T, Hq, D] float64 over K/V as they decode."""
        out, at = [], 0
        for n, count, k, v in zip(self.lengths, self.queries, *self.decoded, strict=True):
            q = self.q[at : at + count].double()
            at += count
            if n <= 0:
                out.append(torch.zeros(count, self.hq, self.dim, dtype=torch.float64))
            elif count:
                out.append(
                    reference.attention(
                        q,
                        k,
                        v,
                        q_start=n - count,
                        scale=self.spec.scale,
                        window=self.window,
                        sink_logits=self.sink_logits,
                    )
                )
        return torch.cat(out)

    def stored(self):
        """K and V as kernels take them."""
        sides = []
        for store in self.store:
            planes = dict(store.planes())
            if self.beyond:
                for name, plane in planes.items():
                    shape = (len(plane) + self.beyond * self.block_size, *plane.shape[1:])
                    longer = plane.new_full(shape, poison(plane))
                    longer[: len(plane)] = plane
                    planes[name] = longer[: len(plane)]
            sides.append(StoredRows.of(planes))
        return sides

    @property
    def num_blocks(self):
        """Of the pool: the least id that is none."""
        plane = next(iter(self.store[0].planes().values()))
        return len(plane) // self.block_size

    def run(self, *, decode=None, **plan):
        """[T, Hq, D] as the kernels give it, into an output that was poisoned. `plan` goes to `PagedDecode.plan`."""
        device = torch.device(self.device)
        self.decode = decode or PagedDecode(self.spec, device)
        self.work = self.decode.plan(self.rows, **plan)
        out = torch.full(self.q.shape, float("nan"), dtype=self.out_dtype, device=device)
        sinks = None if self.sink_logits is None else self.sink_logits.to(device)
        k, v = self.stored()
        self.decode.run(self.q.to(device), k, v, self.table.to(device), out, sinks)
        return out.cpu()


def poison(plane):
    """What must not come through: of a floating plane NaN, of codes a large one."""
    return float("nan") if plane.is_floating_point() else 113
