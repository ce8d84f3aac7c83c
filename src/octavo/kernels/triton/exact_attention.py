"""Paged attention in which a row's bits are its own: one kernel, one tile and one cut for every row of every step.

A token that is generated, one of a few and one of a prompt's chunk are all rows of `prefill_tiles`, over parts of
columns at absolute multiples of EXACT_PART. What a block table holds is the caller's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.exact_parts import EXACT_PART, MOST_PARTIAL_BYTES
from octavo.kernels.step_staging import StepStaging
from octavo.kernels.triton.decode_merge import decode_merge
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.paged_decode import DecodeSpec, StoredRows
from octavo.kernels.triton.paged_prefill import CODECS, PrefillTile, precise_end
from octavo.kernels.triton.prefill_plan import MERGE_FIELDS, PART_FIELDS, PrefillRows, PrefillWork, build_work
from octavo.kernels.triton.prefill_tiles import prefill_tiles

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Round:
    """What is launched together: parts and merges `[first, stop)`; their partial results lie in the same memory."""

    first_part: int
    stop_part: int
    first_merge: int
    stop_merge: int


@dataclass(frozen=True, slots=True)
class ExactGeometry:
    """All of a step that its launches depend on. `tokens` are the most of a query tile; `stride` is how many rows a
    partial result has room for.
    """

    rounds: tuple[Round, ...]
    tokens: int
    stride: int
    gaps: bool


class ExactAttention:
    """The launches of one group of layers. Owned by one thread; `plan` for a step, then `run` for each layer."""

    def __init__(
        self,
        spec: DecodeSpec,
        device: torch.device,
        staging: StepStaging | None = None,
        tile: PrefillTile | None = None,
        part: int = EXACT_PART,
        most_partial_bytes: int = MOST_PARTIAL_BYTES,
    ) -> None:
        """`staging` is what the caller sends between `plan` and `run`; without one, `plan` sends its own.

        `part` is a multiple of the tile's columns.
        """
        refusal = spec.refusal()
        assert refusal is None, refusal
        self.spec = spec
        self._shared, self._staging = staging, staging or StepStaging(device)
        self._part = part
        self._most_rows = max(1, most_partial_bytes // (4 * spec.num_q_heads * (spec.v_dim + 1)))
        self._fast = device.type == "cuda" and torch.version.cuda is not None
        self._dependent = dependent_launch(device)
        self._tile = tile or exact_tile(max(spec.k_dim, spec.v_dim))
        self._parts = torch.zeros(0, dtype=torch.int32, device=device)
        self._merges = torch.zeros(0, dtype=torch.int32, device=device)
        self._partial = self._lse = torch.zeros(1, dtype=torch.float32, device=device)
        self.geometry = ExactGeometry((), 1, 1, False)

    @property
    def tokens(self) -> int:
        """Of a query tile."""
        return self._tile.block_m // self.spec.group

    @property
    def fixture(self) -> tuple[object, ...]:
        """All that a graph of `run` has in it: equal ones give the same launches with the same arguments."""
        pointers = (each.data_ptr() for each in (self._parts, self._merges, self._partial, self._lse))
        return self.geometry, *pointers

    def plan(self, rows: PrefillRows, *, fixed: bool = False) -> None:
        """Cut a step's rows into work and hand it to the device, in stream order, without waiting for it.

        `fixed` pads what is launched for rows of one token, so that it stays for a while as sequences grow.
        """
        work = build_work(rows, self.tokens, self.spec.window, self._part)
        tokens = int(work.parts[:, 1].max(initial=1))
        stride = 1 if tokens == 1 else self.tokens
        if fixed:
            assert tokens == 1, f"{tokens} tokens of a row in a step of single ones"
            work, rounds = _padded(work, len(rows.num_tokens))
            slots = len(work.parts) if len(work.merges) else 0
        else:
            work, rounds, slots = _in_rounds(work, max(1, self._most_rows // stride))
        # The kernel counts rows of partial results.
        work.parts[:, 6] *= np.where(work.parts[:, 6] < 0, 1, stride).astype(np.int32)
        self.geometry = ExactGeometry(rounds, tokens, stride, rows.has_gaps)
        if self._shared is None:
            self._staging.begin()
        self._parts = self._staging.put(work.parts.ravel())
        self._merges = self._staging.put(work.merges.ravel())
        if self._shared is None:
            self._staging.send()
        partials = slots * stride * self.spec.num_q_heads
        if partials > len(self._lse):
            self._lse = torch.empty(partials, dtype=torch.float32, device=self._lse.device)
            self._partial = torch.empty(partials * self.spec.v_dim, dtype=torch.float32, device=self._lse.device)

    def run(
        self, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attend. q [T, Hq, Dk] of any floating dtype with contiguous heads, out [T, Hq, Dv], table int32 (flat).

        K and V of the rows are stored already. Rows of no sequence are left alone. Waits for nothing, allocates
        nothing.
        """
        for launch in self.geometry.rounds:
            self._attend(launch, q, k, v, table, out, sinks)
            if launch.stop_merge > launch.first_merge:
                self._merge(launch, out, sinks)

    def _attend(
        self, launch: Round, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None
    ) -> None:
        spec, tile = self.spec, self._tile
        prefill_tiles[(launch.stop_part - launch.first_part, spec.num_kv_heads)](
            q,
            out,
            self._partial,
            self._lse,
            k.data,
            v.data,
            k.data if k.scales is None else k.scales,
            v.data if v.scales is None else v.scales,
            table,
            self._parts[launch.first_part * PART_FIELDS :],
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
            HAS_GAPS=self.geometry.gaps,
            HAS_SINKS=sinks is not None,
            TOKENS=1,  # slots count rows of partial results
            FAST=self._fast,
            PRECISE_END=precise_end(spec),
            DEPENDENT=self._dependent,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **({"launch_pdl": True} if self._dependent else {}),
        )

    def _merge(self, launch: Round, out: Tensor, sinks: Tensor | None) -> None:
        spec, geometry = self.spec, self.geometry
        block_d, warps = (32, 1) if spec.v_dim <= 64 else (64, 2)
        rows = spec.num_q_heads * geometry.tokens
        decode_merge[(launch.stop_merge - launch.first_merge, rows, -(-spec.v_dim // block_d))](
            out,
            self._partial,
            self._lse,
            self._merges[launch.first_merge * MERGE_FIELDS :],
            self._lse if sinks is None else sinks,
            HQ=spec.num_q_heads,
            QUERIES=geometry.stride,
            DV=spec.v_dim,
            BLOCK_D=block_d,
            BLOCK_S=32,
            HAS_SINKS=sinks is not None,
            DEPENDENT=self._dependent,
            num_warps=warps,
            **({"launch_pdl": True} if self._dependent else {}),
        )


def exact_tile(dim: int) -> PrefillTile:
    """The one tile for heads of `dim` elements: as few query rows as the matrix units take."""
    return PrefillTile(64, 32 if dim > 128 else 64, 4, 3)


def _padded(work: PrefillWork, num_rows: int) -> tuple[PrefillWork, tuple[Round, ...]]:
    """The work in lists of sizes that stay: parts a power of two, merges, if any, one for each row."""
    parts = np.zeros((1 << max(0, len(work.parts) - 1).bit_length(), PART_FIELDS), dtype=np.int32)
    parts[: len(work.parts)] = work.parts
    merges = np.zeros((num_rows if len(work.merges) else 0, MERGE_FIELDS), dtype=np.int32)
    merges[: len(work.merges)] = work.merges
    return PrefillWork(parts, merges), (Round(0, len(parts), 0, len(merges)),)


def _in_rounds(work: PrefillWork, most_slots: int) -> tuple[PrefillWork, tuple[Round, ...], int]:
    """The work in as many rounds as leave each at most `most_slots` partial results, or one tile's; and the most."""
    if not len(work.parts):
        return work, (), 0
    ends = np.cumsum(work.merges[:, 3], dtype=np.int64)
    edges, first_slots = [0], [0]
    while edges[-1] < len(ends):
        stop = int(np.searchsorted(ends, first_slots[-1] + most_slots, side="right"))
        edges.append(max(stop, edges[-1] + 1))
        first_slots.append(int(ends[edges[-1] - 1]))
    if len(edges) <= 2:
        return work, (Round(0, len(work.parts), 0, len(work.merges)),), work.num_slots
    merges, kept, rounds, most = work.merges.copy(), [], [], 0
    turn = np.where(work.parts[:, 6] < 0, 0, np.searchsorted(first_slots, work.parts[:, 6], side="right") - 1)
    first = 0
    for i in range(len(edges) - 1):
        mine = work.parts[turn == i]
        mine[:, 6] -= np.where(mine[:, 6] < 0, 0, first_slots[i]).astype(np.int32)
        merges[edges[i] : edges[i + 1], 2] -= first_slots[i]
        # An even number of them, for the next ones' alignment.
        kept.append(np.concatenate((mine, np.zeros((len(mine) % 2, PART_FIELDS), dtype=np.int32))))
        rounds.append(Round(first, first + len(kept[-1]), edges[i], edges[i + 1]))
        first += len(kept[-1])
        most = max(most, first_slots[i + 1] - first_slots[i])
    return PrefillWork(np.concatenate(kept), merges), tuple(rounds), most
