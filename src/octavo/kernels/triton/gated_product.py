"""The launch of a gate and up projection with its activation. Allocates the output, waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from octavo.kernels.rows import HalfNormed
from octavo.kernels.triton.gated_dot import gated_dot
from octavo.kernels.triton.gated_sums import gated_sums
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyTile


@dataclass(frozen=True, slots=True)
class GatedTile:
    """A program takes `block_n` rows of the gate and as many of the up projection, `block_k` columns at a time, and
    loads `ahead` such tiles of each ahead of the sums.
    """

    block_n: int
    block_k: int
    num_warps: int
    ahead: int = 1


# By rows of the gate and columns, where that was measured to be faster in a decode step than a product and a gate, on
# one NVIDIA H200 on 2026-11-30: of one row without matrix units, by 1 and 2 % of the step, and of 64 with them.
_SUMS = {(6144, 2048): GatedTile(4, 512, 4), (14336, 4096): GatedTile(2, 1024, 4, ahead=2)}
_DOTS = {
    (6144, 2048): SkinnyTile("swapped", 64, 64, 64, 4, 6),
    (14336, 4096): SkinnyTile("swapped", 64, 128, 64, 4, 4),
}


def gated_tile(num_rows: int, n: int, k: int, shared_bytes: int) -> GatedTile | SkinnyTile | None:
    """For `num_rows` rows and a gate [n, k]; None where a product and a gate are as fast, or nobody has measured.

    `shared_bytes` are what a program may have.
    """
    if num_rows == 1:
        return _SUMS.get((n, k))
    tile = _DOTS.get((n, k)) if MAX_ROWS // 2 < num_rows <= MAX_ROWS else None
    return tile if tile is not None and tile.shared_bytes <= shared_bytes else None


def exact_gated_tile(num_rows: int, tile: SkinnyTile) -> SkinnyTile | None:
    """`tile`, the exact one of the product, where the gate is to be computed with it; None for two kernels."""
    return tile if 0 < num_rows <= MAX_ROWS and tile.splits * tile.folds == 1 else None


def multiply_gated(x: Tensor | HalfNormed, weight: Tensor, gelu: bool, tile: GatedTile | SkinnyTile) -> Tensor:
    """SiLU (or tanh-GELU) of x · gateᵀ, times x · upᵀ: [M, N] in the weight's dtype.

    x [M, K], weight [2 N, K] with the gate's rows first; all contiguous. x is rounded to the weight's dtype, and so are
    both products before they meet. With a `SkinnyTile`, which has no splits, the bits are those of a product with it
    and a gate, for any number of rows; else rows are few and may be half normed.
    """
    if isinstance(tile, SkinnyTile):
        assert isinstance(x, Tensor), f"no norms in {tile}"
        return _multiply_by_dots(x, weight, gelu, tile)
    half = x if isinstance(x, HalfNormed) else None
    x = x.weighted if isinstance(x, HalfNormed) else x
    num_rows, columns = x.shape
    n = len(weight) // 2
    out = torch.empty(num_rows, n, dtype=weight.dtype, device=weight.device)
    dependent = dependent_launch(x.device)
    tiles = triton.cdiv(columns, tile.block_k)
    gated_sums[(triton.cdiv(n, tile.block_n),)](
        x,
        weight,
        out,
        num_rows,
        n,
        columns,
        x.stride(0),
        out.stride(0),
        out if half is None else half.squares,
        0 if half is None else half.parts,
        0.0 if half is None else half.eps,
        BLOCK_M=triton.next_power_of_2(num_rows),
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        TILES=tiles,
        AHEAD=min(tile.ahead, tiles),
        EVEN=columns % tile.block_k == 0,
        GELU=gelu,
        DEPENDENT=dependent,
        PARTS=0 if half is None else triton.next_power_of_2(half.parts),
        num_warps=tile.num_warps,
        **({"launch_pdl": True} if dependent else {}),
    )
    return out


def _multiply_by_dots(x: Tensor, weight: Tensor, gelu: bool, tile: SkinnyTile) -> Tensor:
    assert tile.splits * tile.folds == 1, f"columns are added up in one go, not as in {tile}"
    num_rows, columns = x.shape
    n = len(weight) // 2
    out = torch.empty(num_rows, n, dtype=weight.dtype, device=weight.device)
    if not num_rows:
        return out
    dependent = dependent_launch(x.device)
    gated_dot[(triton.cdiv(num_rows, tile.block_m), triton.cdiv(n, tile.block_n // 2))](
        x,
        weight,
        out,
        num_rows,
        n,
        columns,
        x.stride(0),
        out.stride(0),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        EVEN=columns % tile.block_k == 0,
        GELU=gelu,
        STAGES=tile.num_stages,
        DEPENDENT=dependent,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **({"launch_pdl": True} if dependent else {}),
    )
    return out
