"""Paged attention in which a row's bits are its own: one order of addition for every row of every step.

A token that is generated, one of a few and one of a prompt's chunk are all rows of `prefill_tiles`, over parts of
columns at absolute multiples of EXACT_PART; tiles of few and of many rows multiply in steps of the matrix units that
are equal to the bit. What a block table holds is the caller's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.attention_parts import EXACT_PART, MOST_PARTIAL_BYTES
from octavo.kernels.step_staging import StepStaging
from octavo.kernels.triton.exact_merge import exact_merge
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.paged_decode import DecodeSpec, StoredRows
from octavo.kernels.triton.paged_prefill import CODECS, PrefillTile, halves_end, precise_end
from octavo.kernels.triton.prefill_plan import MERGE_FIELDS, PART_FIELDS, PrefillRows, PrefillWork, build_work
from octavo.kernels.triton.prefill_tiles import prefill_tiles

_WHOLE = 1 << 30  # columns; no tile is cut
_FULL = 256  # programs that fill a device of some hundred multiprocessors
_EVEN = 1.5  # the longest sequence to the mean


@dataclass(frozen=True, slots=True)
class Round:
    """What is launched together: parts and merges `[first, stop)`; their partial results lie in the same memory."""

    first_part: int
    stop_part: int
    first_merge: int
    stop_merge: int


@dataclass(frozen=True, slots=True)
class ExactTiles:
    """A tile for rows of a few tokens, and one for chunks of many: they give a row the same bits."""

    few: PrefillTile
    many: PrefillTile


@dataclass(frozen=True, slots=True)
class FormGeometry:
    """All that a form's launches of a step depend on. `tokens` are the most of a query tile, and a partial result has
    room for `stride` rows. `whole`: a program has all parts of its tile.
    """

    rounds: tuple[Round, ...]
    tokens: int
    stride: int
    gaps: bool
    whole: bool = False


class ExactAttention:
    """The launches of one group of layers. Owned by one thread; `plan` for a step, then `run` for each layer."""

    def __init__(
        self,
        spec: DecodeSpec,
        device: torch.device,
        staging: StepStaging | None = None,
        tiles: ExactTiles | None = None,
        part: int = EXACT_PART,
        most_partial_bytes: int = MOST_PARTIAL_BYTES,
    ) -> None:
        """`staging` is what the caller sends between `plan` and `run`; without one, `plan` sends its own.

        `part` is a multiple of the tiles' columns, which are as many.
        """
        refusal = spec.refusal()
        assert refusal is None, refusal
        self.spec = spec
        self._shared, self._staging = staging, staging or StepStaging(device)
        self._part = part
        self._most_rows = max(1, most_partial_bytes // (4 * spec.num_q_heads * (spec.v_dim + 2)))
        tiles = tiles or exact_tiles(max(spec.k_dim, spec.v_dim), spec.bits)
        assert tiles.few.block_n == tiles.many.block_n, f"sums over tiles of other columns: {tiles}"
        few = tiles.few.block_m // spec.group
        # What is decided for a tile is decided for all the tokens of a wide one.
        self._unit = tiles.many.block_m // spec.group // few * few
        self._few = _Form(spec, device, tiles.few, few, part)
        self._many = _Form(spec, device, tiles.many, self._unit, part)
        self._partial = self._scalars = torch.zeros(2, dtype=torch.float32, device=device)

    @property
    def fixture(self) -> tuple[object, ...]:
        """All that a graph of `run` has in it: equal ones give the same launches with the same arguments."""
        return *self._few.fixture, *self._many.fixture, self._partial.data_ptr(), self._scalars.data_ptr()

    @property
    def rounds(self) -> int:
        """Launches over K and V of the planned step."""
        return len(self._few.geometry.rounds) + len(self._many.geometry.rounds)

    def plan(self, rows: PrefillRows, *, fixed: bool = False) -> None:
        """Cut a step's rows into work and hand it to the device, in stream order, without waiting for it.

        `fixed` pads what is launched for rows of one token, so that it stays for a while as sequences grow.
        """
        if self._shared is None:
            self._staging.begin()
        many = rows.num_tokens > self._few.tokens
        needed = 0
        for form, mask in ((self._few, ~many), (self._many, many)):
            if not mask.any():
                form.clear()
                continue
            mine = rows if mask.all() else _chosen(rows, mask)
            whole = form is self._few and self.spec.bits == 16 and self._stays_whole(mine)
            part = _WHOLE if whole else self._part
            work = build_work(mine, form.tokens, self.spec.window, part, self._unit)
            pad = len(rows.num_tokens) if fixed and form is self._few else None
            slots = form.plan(work, self._most_rows, self._staging, pad, gaps=rows.has_gaps, whole=whole)
            needed = max(needed, slots * form.geometry.stride * self.spec.num_q_heads)
        if self._shared is None:
            self._staging.send()
        if 2 * needed > len(self._scalars):
            device = self._scalars.device
            self._scalars = torch.empty(2 * needed, dtype=torch.float32, device=device)
            self._partial = torch.empty(needed * self.spec.v_dim, dtype=torch.float32, device=device)

    def _stays_whole(self, rows: PrefillRows) -> bool:
        """Whether tiles of few rows fill the device with all their parts each, and none is much longer than others.

        Tiles of many have no room for two sets of sums.
        """
        rows = _chosen(rows, rows.num_tokens > 0)
        if not len(rows.start):
            return False
        stop = rows.start + rows.num_tokens
        tiles = int((-(-stop // self._few.tokens) - rows.start // self._few.tokens).sum())
        even = int(stop.max()) * len(stop) <= _EVEN * int(stop.sum())
        return even and tiles * self.spec.num_kv_heads >= _FULL

    def run(
        self, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attend. q [T, Hq, Dk] of any floating dtype with contiguous heads, out [T, Hq, Dv], table int32 (flat).

        K and V of the rows are stored already. Rows of no sequence are left alone. Waits for nothing, allocates
        nothing.
        """
        for form in (self._few, self._many):
            form.run(q, k, v, table, out, sinks, self._partial, self._scalars)


class _Form:
    """The rows of a step that one tile serves."""

    def __init__(self, spec: DecodeSpec, device: torch.device, tile: PrefillTile, tokens: int, part: int) -> None:
        self.tokens = tokens
        self._part = part
        self._spec = spec
        self._tile = tile
        self._fast = device.type == "cuda" and torch.version.cuda is not None
        self._dependent = dependent_launch(device)
        self._parts = self._merges = torch.zeros(0, dtype=torch.int32, device=device)
        self.geometry = FormGeometry((), 1, 1, False)

    @property
    def fixture(self) -> tuple[object, ...]:
        if not self.geometry.rounds:
            return (self.geometry,)
        return self.geometry, self._parts.data_ptr(), self._merges.data_ptr()

    def clear(self) -> None:
        """Plan nothing."""
        self.geometry = FormGeometry((), 1, 1, False)

    def plan(
        self, work: PrefillWork, most_rows: int, staging: StepStaging, pad: int | None, *, gaps: bool, whole: bool
    ) -> int:
        """Put the work among what is sent; how many partial results there are at a time. `pad` is as many rows as there
        are, if they are of one token and what is launched is to stay for a while.
        """
        tokens = int(work.parts[:, 1].max(initial=1))
        stride = 1 if tokens == 1 else self.tokens
        if pad is not None:
            assert tokens == 1, f"{tokens} tokens of a row in a step of single ones"
            work, rounds = _padded(work, pad)
            slots = len(work.parts) if len(work.merges) else 0
        else:
            work, rounds, slots = _in_rounds(work, max(1, most_rows // stride))
        # The kernel counts rows of partial results.
        work.parts[:, 6] *= np.where(work.parts[:, 6] < 0, 1, stride).astype(np.int32)
        self.geometry = FormGeometry(rounds, tokens, stride, gaps, whole)
        self._parts = staging.put(work.parts.ravel())
        self._merges = staging.put(work.merges.ravel())
        return slots

    def run(
        self,
        q: Tensor,
        k: StoredRows,
        v: StoredRows,
        table: Tensor,
        out: Tensor,
        sinks: Tensor | None,
        partial: Tensor,
        scalars: Tensor,
    ) -> None:
        for launch in self.geometry.rounds:
            self._attend(launch, q, k, v, table, out, sinks, partial, scalars)
            if launch.stop_merge > launch.first_merge:
                self._merge(launch, out, sinks, partial, scalars)

    def _attend(
        self,
        launch: Round,
        q: Tensor,
        k: StoredRows,
        v: StoredRows,
        table: Tensor,
        out: Tensor,
        sinks: Tensor | None,
        partial: Tensor,
        scalars: Tensor,
    ) -> None:
        spec, tile = self._spec, self._tile
        prefill_tiles[(launch.stop_part - launch.first_part, spec.num_kv_heads)](
            q,
            out,
            partial,
            scalars,
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
            HALVES_END=halves_end(spec),
            DEPENDENT=self._dependent,
            STAGES=tile.num_stages,
            PART=self._part,
            ONE_PART=not self.geometry.whole,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **({"launch_pdl": True} if self._dependent else {}),
        )

    def _merge(self, launch: Round, out: Tensor, sinks: Tensor | None, partial: Tensor, scalars: Tensor) -> None:
        spec, geometry = self._spec, self.geometry
        block_d, warps = (32, 1) if spec.v_dim <= 64 else (64, 2)
        rows = spec.num_q_heads * geometry.tokens
        exact_merge[(launch.stop_merge - launch.first_merge, rows, -(-spec.v_dim // block_d))](
            out,
            partial,
            scalars,
            self._merges[launch.first_merge * MERGE_FIELDS :],
            scalars if sinks is None else sinks,
            HQ=spec.num_q_heads,
            STRIDE=geometry.stride,
            DV=spec.v_dim,
            BLOCK_D=block_d,
            UNROLL=8,
            HAS_SINKS=sinks is not None,
            DEPENDENT=self._dependent,
            num_warps=warps,
            **({"launch_pdl": True} if self._dependent else {}),
        )


def exact_tiles(dim: int, bits: int) -> ExactTiles:
    """The tiles for heads of `dim` elements, `bits` each. Codes have one: to scale them is not the same in others."""
    if bits < 16:
        tile = PrefillTile(64, 32 if dim > 128 else 64, 4, 3)
        return ExactTiles(tile, tile)
    if dim > 128:
        return ExactTiles(PrefillTile(16, 32, 4, 3), PrefillTile(128, 32, 8, 3))
    if dim > 64:
        return ExactTiles(PrefillTile(16, 64, 4, 3), PrefillTile(128, 64, 8, 3))
    return ExactTiles(PrefillTile(16, 64, 2, 4), PrefillTile(128, 64, 4, 3))


def _chosen(rows: PrefillRows, mask: NDArray[np.bool_]) -> PrefillRows:
    keep = None if rows.keep is None else rows.keep[mask]
    skip = None if rows.skip is None else rows.skip[mask]
    return PrefillRows(
        rows.first_query[mask], rows.num_tokens[mask], rows.start[mask], rows.table_begin[mask], keep, skip
    )


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
