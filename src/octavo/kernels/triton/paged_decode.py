"""Paged decode of one group of layers on a device: buffers that outlive a step, and the two launches of each layer.

Knows the kernels and their work list; what a block table holds and which rows take this route is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import triton
from torch import Tensor

from octavo.kernels.triton.decode_merge import decode_merge
from octavo.kernels.triton.decode_plan import (
    EXACT_CHUNK,
    GAP_FIELDS,
    GRAIN,
    ITEM_FIELDS,
    MERGE_FIELDS,
    DecodeRows,
    WorkList,
    build_work_list,
    chunk_length,
    one_row_each,
)
from octavo.kernels.triton.decode_split import decode_split
from octavo.kernels.triton.decode_tiles import DecodeTile, decode_tile, target_programs

_CODECS = {"f32": 0, "f16": 0, "bf16": 0, "q8_0": 1, "q4_0": 2}
_HOST_BUFFERS = 3


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """What is compiled for: heads, storage and masks of one group of layers."""

    num_q_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    block_size: int
    k_codec: str
    v_codec: str
    scale: float
    window: int | None = None
    sinks: bool = False
    exact: bool = False

    def refusal(self) -> str | None:
        """Why the kernels do not serve this; None if they do."""
        for name, codec, dim in (("keys", self.k_codec, self.k_dim), ("values", self.v_codec, self.v_dim)):
            if codec not in _CODECS:
                return f"no fused kernel for {codec} {name}"
            if dim % 16 or not 16 <= dim <= 256:
                return f"no fused kernel for {name} of {dim} elements"
        if self.num_q_heads // self.num_kv_heads > 16:
            return f"no fused kernel for {self.num_q_heads // self.num_kv_heads} query heads per K/V head"
        if self.block_size not in (16, 32, 64):
            return f"no fused kernel for blocks of {self.block_size}"
        return None


@dataclass(frozen=True, slots=True)
class StoredRows:
    """K or V rows [num_rows, Hkv, width] as a codec's planes hold them; `scales` [num_rows, Hkv, groups] or None."""

    data: Tensor
    scales: Tensor | None

    @classmethod
    def of(cls, planes: Mapping[str, Tensor]) -> StoredRows:
        if "values" in planes:
            return cls(planes["values"], None)
        return cls(planes["codes"], planes["scales"])


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a captured graph fixes. `queries` rows at most per sequence; without `merges` the second launch is left out."""

    queries: int
    items: int
    rows: int
    merges: bool
    gaps: bool


class PagedDecode:
    """The launches of one group of layers. Owned by one thread; `plan` for a step, then `run` for each layer."""

    def __init__(
        self, spec: DecodeSpec, device: torch.device, tile: DecodeTile | None = None, *, precise: bool = True
    ) -> None:
        """`precise` multiplies softmax weights in two 16-bit halves; without it they are rounded to one."""
        self.precise = precise
        refusal = spec.refusal()
        assert refusal is None, refusal
        self.spec = spec
        self._device = device
        group = spec.num_q_heads // spec.num_kv_heads
        self._group = group
        self.tile = tile or decode_tile(max(spec.k_dim, spec.v_dim), _CODECS[spec.k_codec] + _CODECS[spec.v_codec] > 0)
        cuda = device.type == "cuda" and torch.version.cuda is not None
        self._pdl = cuda and torch.cuda.get_device_capability(device) >= (9, 0)
        self._steps = torch.zeros(0, dtype=torch.int32, device=device)
        self._host: list[Tensor] = []
        self._turn = 0
        self._partial = torch.zeros(0, dtype=torch.float32, device=device)
        self._lse = torch.zeros(0, dtype=torch.float32, device=device)
        self.geometry = Geometry(1, 0, 0, False, False)

    def work_list(self, rows: DecodeRows, *, chunk: int | None = None, capacity: int | None = None) -> WorkList:
        """Cut a step's sequences: at absolute multiples of EXACT_CHUNK if the spec is exact, else by load."""
        if self.spec.exact:
            return build_work_list(
                one_row_each(rows, self.spec.window), chunk=EXACT_CHUNK, exact=True, capacity=capacity
            )
        lengths = np.maximum(rows.columns - rows.first_column, 0)
        if chunk is None:
            bytes_per_column = self.spec.num_kv_heads * (self.spec.k_dim + self.spec.v_dim) * 2
            programs = target_programs(int(lengths.sum()) * bytes_per_column)
            items = max(1, programs // self.spec.num_kv_heads)
            if capacity is not None:
                items = min(items, capacity)
            chunk = chunk_length(lengths, items, 2 * GRAIN)
        return build_work_list(rows, chunk=chunk, exact=False, capacity=capacity)

    def upload(self, work: WorkList, queries: int, *, gaps: bool = False) -> None:
        """Hand a work list to the device, in stream order. `queries` is the most rows that any sequence has.

        Buffers grow here and nowhere else; while a graph that reads them is alive, keep to its geometry.
        """
        num_rows = len(work.merges)
        queries = 1 if self.spec.exact else queries
        self.geometry = Geometry(queries, len(work.items), num_rows, work.num_slots > 0, gaps)
        values = np.concatenate((work.items.ravel(), work.merges.ravel(), work.gaps.ravel()))
        if len(values) > len(self._steps):
            self._steps = torch.zeros(len(values), dtype=torch.int32, device=self._device)
            pinned = self._device.type == "cuda"
            self._host = [torch.zeros(len(values), dtype=torch.int32, pin_memory=pinned) for _ in range(_HOST_BUFFERS)]
        host = self._host[self._turn]
        self._turn = (self._turn + 1) % _HOST_BUFFERS
        host[: len(values)] = torch.from_numpy(values)
        self._steps[: len(values)].copy_(host[: len(values)], non_blocking=True)
        partials = work.num_slots * queries * self.spec.num_q_heads
        if partials > len(self._lse):
            self._lse = torch.empty(partials, dtype=torch.float32, device=self._device)
            self._partial = torch.empty(partials * self.spec.v_dim, dtype=torch.float32, device=self._device)

    def run(
        self, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attend. q [T, Hq, Dk] of any floating dtype with contiguous heads, out [T, Hq, Dv], table int32 (flat).

        Waits for nothing and allocates nothing. Sequences that see nothing get zeros, query rows of none nothing.
        """
        spec, tile, geometry = self.spec, self.tile, self.geometry
        items = self._steps
        merges = items[geometry.items * ITEM_FIELDS :]
        gaps = merges[geometry.rows * MERGE_FIELDS :]
        tile_rows = 16 if spec.exact else _tile_rows(geometry.queries * self._group, spec.v_dim)
        query_tiles = -(-geometry.queries * self._group // tile_rows)
        decode_split[(spec.num_kv_heads, geometry.items, query_tiles)](
            q,
            out,
            self._partial,
            self._lse,
            k.data,
            v.data,
            k.data if k.scales is None else k.scales,
            v.data if v.scales is None else v.scales,
            table,
            items,
            gaps,
            self._lse if sinks is None else sinks,
            spec.scale * math.log2(math.e),
            spec.window or 0,
            k.data.shape[0] // spec.block_size,
            q.stride(0),
            HQ=spec.num_q_heads,
            HKV=spec.num_kv_heads,
            QUERIES=geometry.queries,
            DK=spec.k_dim,
            DV=spec.v_dim,
            BLOCK_SIZE=spec.block_size,
            BLOCK_M=tile_rows,
            BLOCK_N=tile.block_n,
            K_CODEC=_CODECS[spec.k_codec],
            V_CODEC=_CODECS[spec.v_codec],
            HAS_WINDOW=spec.window is not None,
            HAS_GAPS=geometry.gaps,
            HAS_SINKS=sinks is not None,
            FAST=self._device.type == "cuda",
            PRECISE=self.precise,
            PDL=self._pdl,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        if geometry.merges:
            launch = {"launch_pdl": True} if self._pdl else {}
            block_d = min(128, triton.next_power_of_2(spec.v_dim))
            decode_merge[(geometry.rows, spec.num_q_heads * geometry.queries, triton.cdiv(spec.v_dim, block_d))](
                out,
                self._partial,
                self._lse,
                merges,
                self._lse if sinks is None else sinks,
                HQ=spec.num_q_heads,
                QUERIES=geometry.queries,
                DV=spec.v_dim,
                BLOCK_D=block_d,
                BLOCK_S=32,
                HAS_SINKS=sinks is not None,
                PDL=self._pdl,
                num_warps=4,
                **launch,
            )


def _tile_rows(rows: int, dim: int) -> int:
    """Rows of a query tile: all of them up to what registers hold."""
    return max(16, min(triton.next_power_of_2(rows), 32 if dim > 128 else 64))
