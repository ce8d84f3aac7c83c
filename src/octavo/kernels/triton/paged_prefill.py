"""Paged attention of chunks of several tokens, for one group of layers on a device: a plan per step, then one launch
for each layer. What a block table holds and which rows take this route is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.attention_parts import PREFILL_PART
from octavo.kernels.step_staging import StepStaging
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.paged_decode import DecodeSpec, StoredRows
from octavo.kernels.triton.prefill_merge import prefill_merge
from octavo.kernels.triton.prefill_plan import MERGE_FIELDS, PART_FIELDS, PrefillRows, build_work
from octavo.kernels.triton.prefill_tiles import prefill_tiles

CODECS = {"f32": 0, "f16": 0, "bf16": 0, "q8_0": 1, "q4_0": 2}

# Up to this column, a query tile keeps the precision of 32-bit operands. Beyond, many rounded weights average out.
_PRECISE_END = 256
_PRECISE_END_QUANTISED = 1024
_PRECISE_END_BF16 = 2048
# bfloat16 keeps so little of a query that it takes more columns for that to average out.
_HALVES_END_BF16 = 8192
_EVERYWHERE = 2**31 - 1

_MERGED = 2048  # elements that a program merges


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """`block_m` query rows (tokens times heads of a group) by `block_n` columns at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class PagedPrefill:
    """The launches of one group of layers. Owned by one thread; `plan` for a step, then `run` for each layer."""

    def __init__(
        self,
        spec: DecodeSpec,
        device: torch.device,
        staging: StepStaging | None = None,
        tile: PrefillTile | None = None,
        part: int = PREFILL_PART,
    ) -> None:
        """`staging` is what the caller sends between `plan` and `run`; without one, `plan` sends its own.

        `part` is a multiple of the tile's columns.
        """
        refusal = spec.refusal()
        assert refusal is None, refusal
        self.spec = spec
        self._shared, self._staging = staging, staging or StepStaging(device)
        self._part = part
        self._fast = device.type == "cuda" and torch.version.cuda is not None
        self._dependent = dependent_launch(device)
        self._tile = tile or best_tile(max(spec.k_dim, spec.v_dim), spec.bits, spec.k_codec == "bf16")
        self._parts = torch.zeros(0, PART_FIELDS, dtype=torch.int32, device=device)
        self._merges = torch.zeros(0, MERGE_FIELDS, dtype=torch.int32, device=device)
        self._partial = self._lse = torch.zeros(1, dtype=torch.float32, device=device)
        self._gaps = False

    @property
    def tokens(self) -> int:
        """Of a query tile."""
        return self._tile.block_m // self.spec.group

    def plan(self, rows: PrefillRows) -> None:
        """Cut a step's chunks into work and hand it to the device, in stream order, without waiting for it."""
        work = build_work(rows, self.tokens, self.spec.window, self._part)
        if self._shared is None:
            self._staging.begin()
        self._parts = self._staging.put(work.parts.ravel()).view(-1, PART_FIELDS)
        self._merges = self._staging.put(work.merges.ravel()).view(-1, MERGE_FIELDS)
        if self._shared is None:
            self._staging.send()
        self._gaps = rows.has_gaps
        partials = work.num_slots * self.tokens * self.spec.num_q_heads
        if partials > len(self._lse):
            self._lse = torch.empty(partials, dtype=torch.float32, device=self._lse.device)
            self._partial = torch.empty(partials * self.spec.v_dim, dtype=torch.float32, device=self._lse.device)

    def run(
        self, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attend. q [T, Hq, Dk] of any floating dtype with contiguous heads, out [T, Hq, Dv], table int32 (flat).

        K and V of the chunks are stored already. Rows of no chunk are left alone. Waits for nothing, allocates nothing.
        """
        spec, tile = self.spec, self._tile
        if not len(self._parts):
            return
        prefill_tiles[(len(self._parts), spec.num_kv_heads)](
            q,
            out,
            self._partial,
            self._lse,
            k.data,
            v.data,
            k.data if k.scales is None else k.scales,
            v.data if v.scales is None else v.scales,
            table,
            self._parts,
            q if sinks is None else sinks,
            spec.scale * math.log2(math.e),
            spec.window or 0,
            k.data.shape[0] // spec.block_size,
            q.stride(0),
            HQ=spec.num_q_heads,
            HKV=spec.num_kv_heads,
            DK=spec.k_dim,
            DV=spec.v_dim,
            BLOCK_SIZE=spec.block_size,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            K_CODEC=CODECS[spec.k_codec],
            V_CODEC=CODECS[spec.v_codec],
            HAS_WINDOW=spec.window is not None,
            HAS_GAPS=self._gaps,
            HAS_SINKS=sinks is not None,
            TOKENS=self.tokens,
            FAST=self._fast,
            PRECISE_END=precise_end(spec),
            HALVES_END=halves_end(spec),
            DEPENDENT=self._dependent,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **({"launch_pdl": True} if self._dependent else {}),
        )

        if len(self._merges):
            block_d = 1 << (spec.v_dim - 1).bit_length()
            block_t = max(1, _MERGED // block_d)
            prefill_merge[(len(self._merges), spec.num_q_heads, -(-self.tokens // block_t))](
                out,
                self._partial,
                self._lse,
                self._merges,
                self._lse if sinks is None else sinks,
                HQ=spec.num_q_heads,
                TOKENS=self.tokens,
                DV=spec.v_dim,
                BLOCK_T=block_t,
                BLOCK_D=block_d,
                HAS_SINKS=sinks is not None,
                DEPENDENT=self._dependent,
                num_warps=4,
                **({"launch_pdl": True} if self._dependent else {}),
            )


def best_tile(dim: int, bits: int, halves: bool = False) -> PrefillTile:
    """Launch settings for heads of `dim` elements, `bits` each, as measured on an H200; elsewhere they are a guess."""
    if dim > 128:
        # Both halves of the queries leave room for fewer columns.
        return PrefillTile(128, 32, 8, 3) if bits == 16 else PrefillTile(128, 32 if halves else 64, 8, 2)
    if dim <= 64:
        return PrefillTile(128, 64, 4, 3)
    return PrefillTile(128, 64 if bits == 16 else 128, 8, 3)


def precise_end(spec: DecodeSpec) -> int:
    end = _PRECISE_END if spec.bits == 16 else _PRECISE_END_QUANTISED
    if "bf16" in (spec.k_codec, spec.v_codec):
        end = _PRECISE_END_BF16
    return _EVERYWHERE if spec.window is not None and spec.window <= end else end


def halves_end(spec: DecodeSpec) -> int:
    """Up to this column, a query tile multiplies both halves of its queries. 0: not past where all is precise."""
    if spec.k_codec != "bf16":
        return 0
    return _EVERYWHERE if spec.window is not None and spec.window <= _HALVES_END_BF16 else _HALVES_END_BF16
