"""Launches of skinny products on a device: their settings, and the scratch that splits of a product share.

What is fastest for which shape is `skinny_table.py`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from octavo.kernels.rows import HalfNormed
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.skinny_code_sums import skinny_code_sums
from octavo.kernels.triton.skinny_codes import skinny_codes, unpack_rows
from octavo.kernels.triton.skinny_dense import skinny_dot, skinny_reduce
from octavo.kernels.triton.skinny_pack import CHUNK_BITS, PackedCodes

MAX_ROWS = 64
_PORTABLE_SHARED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SkinnyTile:
    """`reduce` sums without matrix units, `num_stages` tiles of the weight ahead of the sums; `dot` and `swapped` use
    them, with x or the weight as left operand.

    A program takes `block_n` rows of the weight, `block_k` columns at a time; columns are cut into `splits`, or, with
    the same bits, into `folds` that a program adds up itself. Either have a multiple of `unit` columns, if that is
    given. `early` is `swapped` of a split's columns all at once, loaded before x is there. Codes are never multiplied
    by `dot` or `early`, and by `swapped` 512 bits of each row at a time. A `reduce` that `lets_in` others leaves the
    next kernel to begin while it computes itself.
    """

    form: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 1
    splits: int = 1
    folds: int = 1
    unit: int = 0
    lets_in: bool = True

    @property
    def whole_rows(self) -> bool:
        """Whether one program multiplies all columns, without matrix units."""
        return self.form == "reduce" and self.splits == 1

    def half_normed(self, out: Tensor, dtype: torch.dtype, eps: float) -> HalfNormed:
        """Room for what `multiply` leaves of a sum in out [M, N]."""
        num_rows, n = out.shape
        squares = torch.empty(num_rows, -(-n // self.block_n), dtype=torch.float32, device=out.device)
        return HalfNormed(torch.empty(num_rows, n, dtype=dtype, device=out.device), squares, eps)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program at most, of 16-bit operands or of a chunk of codes."""
        if self.form == "reduce":
            return 0
        columns = self.block_k * (self.block_n + self.block_m) * 2 or 80 * self.block_n + 256 * self.block_m
        return self.num_stages * columns


class SkinnyScratch:
    """What the splits of a product leave for the last one. One for each device: products follow each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.partial = torch.empty(1, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(1, dtype=torch.int32, device=device)
        self.dependent = dependent_launch(device)
        self.shared_bytes = _shared_bytes(device)

    def reserve(self, tile: SkinnyTile, num_rows: int, n: int) -> None:
        """Make room for products of up to `num_rows` rows with a weight of n; not once a graph has been captured."""
        if tile.splits == 1:
            return
        elements, tiles = _scratch_sizes(tile, num_rows, n)
        if elements > len(self.partial):
            self.partial = torch.empty(elements, dtype=torch.float32, device=self._device)
        if tiles > len(self.arrived):
            self.arrived = torch.zeros(tiles, dtype=torch.int32, device=self._device)

    def holds(self, tile: SkinnyTile, num_rows: int, n: int) -> bool:
        """Whether room was made for such a product."""
        elements, tiles = _scratch_sizes(tile, num_rows, n)
        return tile.splits == 1 or (elements <= len(self.partial) and tiles <= len(self.arrived))


def _scratch_sizes(tile: SkinnyTile, num_rows: int, n: int) -> tuple[int, int]:
    """Partial sums, and tiles of the output."""
    return tile.splits * num_rows * n, -(-num_rows // tile.block_m) * -(-n // tile.block_n)


def multiply(
    x: Tensor | HalfNormed,
    weight: Tensor,
    out: Tensor,
    tile: SkinnyTile,
    scratch: SkinnyScratch,
    *,
    add: bool = False,
    leaves: tuple[Tensor, HalfNormed] | None = None,
    dependent: bool | None = None,
) -> None:
    """out [M, N] = x [M, K] · weight [N, K]ᵀ, x rounded to the weight's dtype, sums in float32, out in its own.

    With `add` the product is added to out, float32, and what that is then may be left half normed, too: `leaves` is
    the norm's weight [N] float32, and where to. Only tiles that see `whole_rows` do that, or take x half normed. Rows
    of x and out are contiguous, the weight is. Allocates nothing.
    """
    half = x if isinstance(x, HalfNormed) else None if leaves is None else leaves[1]
    assert half is None or tile.whole_rows, f"no norms in {tile}"
    taken = half if leaves is None else None
    x = x.weighted if isinstance(x, HalfNormed) else x
    num_rows, columns = x.shape
    n = weight.shape[0]
    tiles_m, tiles_n = -(-num_rows // tile.block_m), -(-n // tile.block_n)
    parts, unit = tile.splits * tile.folds, tile.unit or tile.block_k
    split_columns = unit * -(-columns // (unit * parts))
    assert scratch.holds(tile, num_rows, n), f"no scratch for {num_rows} rows in {tile}"
    dependent = scratch.dependent if dependent is None else dependent
    even = columns % tile.block_k == 0 and split_columns * parts == columns
    launch = {"launch_pdl": True} if dependent else {}
    arguments = (
        x,
        weight,
        out,
        scratch.partial,
        scratch.arrived,
        num_rows,
        n,
        columns,
        split_columns,
        x.stride(0),
        out.stride(0),
    )
    if tile.form == "reduce":
        assert num_rows <= tile.block_m, f"{num_rows} rows for a tile of {tile.block_m}"
        tiles_k = -(-split_columns // tile.block_k)
        skinny_reduce[(tiles_n, tile.splits)](
            *arguments,
            scratch.partial if leaves is None else leaves[0],
            out if half is None else half.weighted,
            scratch.partial if half is None else half.squares,
            0 if half is None else half.parts,
            0.0 if half is None else half.eps,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            SPLITS=tile.splits,
            TILES=tiles_k,
            AHEAD=min(tile.num_stages, tiles_k),
            EVEN=even,
            DEPENDENT=dependent,
            LETS_IN=tile.lets_in,
            ADD=add,
            LEAVES=leaves is not None,
            PARTS=0 if taken is None else triton.next_power_of_2(taken.parts),
            num_warps=tile.num_warps,
            **launch,
        )
        return
    assert tile.form != "early" or split_columns <= tile.block_k, f"splits of {split_columns} columns in {tile}"
    skinny_dot[(tiles_m, tiles_n, tile.splits)](
        *arguments,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        SPLITS=tile.splits,
        EVEN=even,
        WEIGHT_IS_FIRST=tile.form != "dot",
        STAGES=tile.num_stages,
        DEPENDENT=dependent,
        FOLDS=tile.folds,
        EARLY=tile.form == "early",
        ADD=add,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch,
    )


def multiply_codes(
    x: Tensor,
    weight: PackedCodes,
    out: Tensor,
    tile: SkinnyTile,
    scratch: SkinnyScratch,
    *,
    dependent: bool | None = None,
) -> None:
    """out [M, N] = x [M, K] · weightᵀ, x in 16 bit or rounded to bfloat16. As `multiply`, but for codes."""
    num_rows, columns = x.shape
    n, chunks = weight.rows, weight.codes.shape[0]
    tiles_m, tiles_n = -(-num_rows // tile.block_m), -(-n // tile.block_n)
    per_scale = weight.chunks_per_scale
    split_chunks = per_scale * -(-chunks // (per_scale * tile.splits))
    assert scratch.holds(tile, num_rows, n), f"no scratch for {num_rows} rows in {tile}"
    dependent = scratch.dependent if dependent is None else dependent
    arguments = (
        x,
        weight.codes,
        weight.scales,
        out,
        scratch.partial,
        scratch.arrived,
        num_rows,
        n,
        columns,
        chunks,
        split_chunks,
        x.stride(0),
        out.stride(0),
    )
    form = {
        "BITS": weight.bits,
        "SCALES": weight.scales_per_chunk,
        "SHARED_BY": weight.chunks_per_scale,
        "SHIFT": weight.shift,
        "PAIRS": _pairs(weight),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "SPLITS": tile.splits,
        "EVEN": columns * weight.bits % CHUNK_BITS == 0,
        "BF16": x.dtype == torch.bfloat16,
        "FAST": _is_cuda(x.device),
        "DEPENDENT": dependent,
        "num_warps": tile.num_warps,
        **({"launch_pdl": True} if dependent else {}),
    }
    if tile.form == "reduce":
        assert num_rows <= tile.block_m, f"{num_rows} rows for a tile of {tile.block_m}"
        pairs = (x.view(torch.int32), *arguments[1:])
        skinny_code_sums[(tiles_n, tile.splits)](*pairs, CHUNKS=tile.block_k * weight.bits // CHUNK_BITS, **form)
        return
    skinny_codes[(tiles_m, tiles_n, tile.splits)](
        *arguments,
        GROUP=weight.group,
        STAGES=tile.num_stages,
        num_stages=tile.num_stages,
        **form,
    )


def unpack(weight: PackedCodes, rows: int | Tensor, out: Tensor) -> None:
    """Rows from that one on, or those of int64 ids [R], into out [R, K], contiguous and of any floating dtype."""
    tile = 64 if isinstance(rows, int) else 16
    unpack_rows[(weight.codes.shape[0], -(-len(out) // tile))](
        weight.codes,
        weight.scales,
        weight.scales if isinstance(rows, int) else rows,
        out,
        rows if isinstance(rows, int) else 0,
        len(out),
        weight.rows,
        weight.columns,
        BITS=weight.bits,
        GROUP=weight.group,
        SCALES=weight.scales_per_chunk,
        SHARED_BY=weight.chunks_per_scale,
        SHIFT=weight.shift,
        PAIRS=_pairs(weight),
        HAS_IDS=not isinstance(rows, int),
        BLOCK_N=tile,
        FAST=_is_cuda(out.device),
    )


def _pairs(weight: PackedCodes) -> int:
    return 0 if weight.pair is None else 1 if weight.pair == torch.float16 else 2


def _shared_bytes(device: torch.device) -> int:
    """Of shared memory that a program may have."""
    if device.type != "cuda":
        return _PORTABLE_SHARED_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.cuda is not None
