"""Paged decode of one group of layers on a device: buffers that outlive a step, and the two launches of each layer.

Knows the kernels and their work list; what a block table holds and which rows take this route is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.kernels.step_staging import StepStaging
from octavo.kernels.triton.decode_merge import decode_merge
from octavo.kernels.triton.decode_plan import ITEM_FIELDS, MERGE_FIELDS, DecodeRows, WorkList, build_work_list
from octavo.kernels.triton.decode_split import decode_split
from octavo.kernels.triton.decode_tiles import DecodeTile, choose

_CODECS = {"f32": 0, "f16": 0, "bf16": 0, "q8_0": 1, "q4_0": 2}
_BITS = {"q8_0": 8, "q4_0": 4}
CODE_ROWS = 8  # of queries in a program of the kernel for codes
_WORDS = 3  # from here on, codes are read as 32-bit words: see `words.py`
_ONE_WAVE = 528  # programs that are on an H200 at once
_LETS_IN_FROM = 33  # rows, of which products stream their weights in kernels that are worth the room
_MOST_ITEMS = 65_535  # of one launch: CUDA's limit of a grid's second dimension

# Softmax weights are rounded to the 16 bits of the values' dtype, unless a sequence sees fewer columns than this: then
# they are multiplied in two halves. Above it the rounding of many weights averages out, to less than 5e-4 in a result
# of values of unit size.
_PRECISE_BELOW = 64
_PRECISE_BELOW_QUANTISED = 512  # scaled codes are rounded too
_PRECISE_BELOW_CODES = 128  # where that goes for values only
_PRECISE_BELOW_BF16 = 2048


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

    def refusal(self) -> str | None:
        """Why the kernels do not serve this; None if they do."""
        for name, codec, dim in (("keys", self.k_codec, self.k_dim), ("values", self.v_codec, self.v_dim)):
            if codec not in _CODECS:
                return f"no fused kernel for {codec} {name}"
            if dim % 16 or not 16 <= dim <= 256:
                return f"no fused kernel for {name} of {dim} elements"
        if self.group > 16:
            return f"no fused kernel for {self.group} query heads per K/V head"
        if self.block_size not in (16, 32, 64):
            return f"no fused kernel for blocks of {self.block_size}"
        return None

    @property
    def group(self) -> int:
        """Query heads per K/V head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def bits(self) -> int:
        """Of a stored element, without its scale: the fewer of K's and V's, 16 at most."""
        return min(_BITS.get(codec, 16) for codec in (self.k_codec, self.v_codec))


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
    """All of a step that its launches depend on, and so what a captured graph fixes.

    `queries` are the most query rows of a sequence, `items` and `rows` the sizes of the work list. The second launch
    is only there for `merges`; `codes` is the first one's form for quantised K and V.
    """

    queries: int
    items: int
    rows: int
    merges: bool
    gaps: bool
    precise: bool
    codes: bool
    tile: DecodeTile


class PagedDecode:
    """The launches of one group of layers. Owned by one thread; `plan` for a step, then `run` for each layer."""

    def __init__(self, spec: DecodeSpec, device: torch.device, staging: StepStaging | None = None) -> None:
        """`staging` is what the caller sends between `plan` and `run`; without one, `plan` sends its own."""
        refusal = spec.refusal()
        assert refusal is None, refusal
        self.spec = spec
        self.plans_built = self.plans_reused = 0
        self._shared, self._staging = staging, staging or StepStaging(device)
        self._device = device
        # Programmatic dependent launch: a kernel starts while the one before it ends, and waits where it must.
        cuda = device.type == "cuda" and torch.version.cuda is not None
        self._dependent = cuda and torch.cuda.get_device_capability(device) >= (9, 0)
        self._dim = max(spec.k_dim, spec.v_dim)
        self._step = torch.zeros(0, dtype=torch.int32, device=device)
        self._partial = torch.zeros(1, dtype=torch.float32, device=device)
        self._lse = torch.zeros(1, dtype=torch.float32, device=device)
        self._rows: DecodeRows | None = None
        self._fixed = False
        self._work: WorkList | None = None
        no_lengths = np.zeros(0, dtype=np.int64)
        self._tile, _, _ = choose(self._dim, spec.bits, spec.num_kv_heads, no_lengths)
        self._codes_kernel = _codes_kernel(spec, device)
        self.geometry = Geometry(1, 0, 0, False, False, True, False, self._tile)

    def plan(
        self,
        rows: DecodeRows,
        *,
        capacity: int | None = None,
        fixed: bool = False,
        tile: DecodeTile | None = None,
        chunk: int | None = None,
        precise: bool | None = None,
    ) -> WorkList:
        """Cut a step's sequences into work and hand it to the device, in stream order and without waiting for it.

        `capacity` pads the work list to what a captured graph launches; with `fixed` it is the most that a load of this
        kind may come to, and so stays as sequences grow. `tile`, `chunk` and `precise` replace what was measured to be
        best. Buffers grow here alone; `fixture` tells whether a graph that reads them must be captured again.
        """
        spec = self.spec
        queries = int(rows.num_queries.max(initial=1))
        if precise is None:
            precise = self._is_short(rows, queries)
        codes = self._codes_kernel is not None and not precise and queries * spec.group <= CODE_ROWS
        chosen = tile is not None or chunk is not None or self.geometry.codes != codes
        continues = not chosen and self._work is not None and self._fixed == fixed and self._continues(rows, capacity)
        if continues and self._work is not None and self._work.advance(rows):
            self.plans_reused += 1
        else:
            best_tile, best_chunk, most = choose(
                self._dim, spec.bits, spec.num_kv_heads, rows.lengths, codes, group=spec.group
            )
            self._work = build_work_list(rows, chunk=chunk or best_chunk, capacity=capacity)
            if fixed:
                self._work = self._work.padded(_fixed_capacity(self._work, most))
            self._tile, self._fixed = tile or best_tile, fixed
            self.plans_built += 1
        self._rows, work = rows, self._work
        self.geometry = Geometry(
            queries, len(work.items), len(work.merges), work.num_slots > 0, rows.has_gaps, precise, codes, self._tile
        )
        self._upload(work, queries)
        return work

    @property
    def fixture(self) -> tuple[Geometry, int, int, int]:
        """All that a graph of `run` has in it: equal ones give the same launches with the same arguments."""
        return self.geometry, self._step.data_ptr(), self._partial.data_ptr(), self._lse.data_ptr()

    @property
    def buffers(self) -> tuple[Tensor, Tensor, Tensor]:
        """On the device: the items, with merges and gaps after them; partial results; their log-sum-exps."""
        return self._step, self._partial, self._lse

    def run(
        self, q: Tensor, k: StoredRows, v: StoredRows, table: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attend. q [T, Hq, Dk] of any floating dtype with contiguous heads, out [T, Hq, Dv], table int32 (flat).

        Waits for nothing and allocates nothing. Sequences that see nothing get zeros, query rows of none nothing.
        """
        spec, geometry = self.spec, self.geometry
        items = self._step
        merges = items[geometry.items * ITEM_FIELDS :]
        gaps = merges[geometry.rows * MERGE_FIELDS :]
        # Without a merge in between, programs that begin early would spread unevenly over the room that these leave.
        dependent = self._dependent and geometry.merges
        # Products whose weights stream ahead begin as soon as there is room, once all programs have begun.
        lets_in = self._dependent and geometry.rows >= _LETS_IN_FROM and geometry.items * spec.num_kv_heads <= _ONE_WAVE
        kernel, planes, tile_rows, form = self._codes_form(k, v) if geometry.codes else self._split_form(k, v)
        for first in range(0, geometry.items, _MOST_ITEMS):
            count = min(_MOST_ITEMS, geometry.items - first)
            kernel[(spec.num_kv_heads, count, -(-geometry.queries * spec.group // tile_rows))](
                q,
                out,
                self._partial,
                self._lse,
                *planes,
                table,
                items[first * ITEM_FIELDS :],
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
                HAS_WINDOW=spec.window is not None,
                HAS_GAPS=geometry.gaps,
                HAS_SINKS=sinks is not None,
                DEPENDENT=dependent or lets_in,
                **form,
                **({"launch_pdl": True} if dependent else {}),
            )
        if geometry.merges:
            block_d, warps = (32, 1) if spec.v_dim <= 64 else (64, 2)
            decode_merge[(geometry.rows, spec.num_q_heads * geometry.queries, -(-spec.v_dim // block_d))](
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
                DEPENDENT=dependent,
                num_warps=warps,
                **({"launch_pdl": True} if dependent else {}),
            )

    def _split_form(self, k: StoredRows, v: StoredRows) -> tuple[Any, list[Tensor], int, dict[str, Any]]:
        """The kernel for every codec, how it sees K and V, its query rows in a tile, and its own settings."""
        spec, geometry, tile = self.spec, self.geometry, self.geometry.tile
        forms = [
            _form(codec, dim, geometry.precise)
            for codec, dim in ((spec.k_codec, spec.k_dim), (spec.v_codec, spec.v_dim))
        ]
        codes = [
            rows.data.view(torch.int32) if form >= _WORDS else rows.data
            for rows, form in zip((k, v), forms, strict=True)
        ]
        planes = [*codes, k.data if k.scales is None else k.scales, v.data if v.scales is None else v.scales]
        tile_rows = _tile_rows(geometry.queries * spec.group, spec.v_dim)
        return (
            decode_split,
            planes,
            tile_rows,
            {
                "BLOCK_M": tile_rows,
                "BLOCK_N": tile.block_n,
                "K_CODEC": forms[0],
                "V_CODEC": forms[1],
                "FAST": self._device.type == "cuda" and torch.version.cuda is not None,
                "PRECISE": geometry.precise,
                "STAGES": tile.num_stages,
                "num_warps": tile.num_warps,
                "num_stages": tile.num_stages,
            },
        )

    def _codes_form(self, k: StoredRows, v: StoredRows) -> tuple[Any, list[Tensor], int, dict[str, Any]]:
        """The same of the kernel for codes."""
        spec, tile = self.spec, self.geometry.tile
        assert k.scales is not None
        assert v.scales is not None
        planes = [k.data.view(torch.int32), v.data.view(torch.int32), k.scales.view(torch.int32), v.scales]
        return (
            self._codes_kernel,
            planes,
            CODE_ROWS,
            {
                "SUBS": tile.block_n // 16,
                "K_CODEC": _CODECS[spec.k_codec],
                "V_CODEC": _CODECS[spec.v_codec],
                "STAGES": tile.num_stages,
                "num_warps": 1,
            },
        )

    def _continues(self, rows: DecodeRows, capacity: int | None) -> bool:
        """Whether these are the sequences of the last plan, in the same launch geometry."""
        old = self._rows
        return (
            old is not None
            and self._work is not None
            and capacity in (None, len(self._work.items))
            and rows.has_gaps == old.has_gaps
            and np.array_equal(rows.first_query, old.first_query)
            and np.array_equal(rows.num_queries, old.num_queries)
            and np.array_equal(rows.table_begin, old.table_begin)
        )

    def _is_short(self, rows: DecodeRows, queries: int) -> bool:
        least = _PRECISE_BELOW
        if "bf16" in (self.spec.k_codec, self.spec.v_codec):
            least = _PRECISE_BELOW_BF16
        elif self._codes_kernel is not None and queries * self.spec.group <= CODE_ROWS:
            least = _PRECISE_BELOW_CODES
        elif self.spec.bits < 16:
            least = _PRECISE_BELOW_QUANTISED
        lengths = rows.lengths
        return bool(((lengths > 0) & (lengths < least + queries)).any())

    def _upload(self, work: WorkList, queries: int) -> None:
        values = np.concatenate((work.longest_first.ravel(), work.merges.ravel(), work.gaps.ravel()))
        if self._shared is None:
            self._staging.begin()
        self._step = self._staging.put(values)
        if self._shared is None:
            self._staging.send()
        slots = len(work.items) if self._fixed and work.num_slots else work.num_slots
        partials = slots * queries * self.spec.num_q_heads
        if partials > len(self._lse):
            self._lse = torch.empty(partials, dtype=torch.float32, device=self._device)
            self._partial = torch.empty(partials * self.spec.v_dim, dtype=torch.float32, device=self._device)


def _fixed_capacity(work: WorkList, most: int) -> int:
    """Items to launch for a work list of at most `most` chunks, whatever lengths its sequences have."""
    if not work.num_slots:
        return len(work.merges)
    # Cuts lie at multiples of GRAIN, which may give a sequence one more, and those that see nothing have one too.
    return most + len(work.merges)


def _form(codec: str, dim: int, precise: bool) -> int:
    """How the kernel reads a codec: as words where results may be rounded and parts of a head are wide enough."""
    form = _CODECS[codec]
    wide = dim & (dim - 1) == 0 and dim >= (64 if codec == "q8_0" else 128)
    return form + 2 if form and wide and not precise else form


def _codes_kernel(spec: DecodeSpec, device: torch.device) -> Any:
    """The kernel for quantised K and V where there is one: on NVIDIA's matrix units since Ampere, from whole words."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    if spec.bits == 16 or not {spec.k_dim, spec.v_dim} <= {64, 128, 256}:
        return None
    if spec.k_codec not in _BITS or spec.v_codec not in _BITS:
        return None
    from octavo.kernels.triton.decode_codes import decode_codes

    return decode_codes


def _tile_rows(rows: int, dim: int) -> int:
    """Rows of a query tile: all of them up to what registers hold."""
    return max(16, min(1 << (rows - 1).bit_length(), 32 if dim > 128 else 64))
