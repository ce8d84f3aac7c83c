"""The launch of attention from what a q/k/v product gives, for steps of few single tokens. Plans nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from octavo.kernels.rows import HeadWeights, Rotation
from octavo.kernels.triton.decode_merge import decode_merge
from octavo.kernels.triton.decode_plan import ITEM_FIELDS
from octavo.kernels.triton.decode_projected import decode_projected
from octavo.kernels.triton.decode_tiles import PROJECTED_GROUP
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.paged_decode import PagedDecode, StoredRows

MOST_ROWS = 1  # sequences of a step, padding included: eight were no faster
LEAST_GROUP = PROJECTED_GROUP  # with two query heads per K/V head it was no faster
_WIDTHS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class ProjectedTile:
    """`block_n` columns at a time, `ahead` such tiles before the projection is there, `num_stages` under way later. A
    merge that `lets_in` others leaves the kernel behind it to begin before there is anything to merge.
    """

    block_n: int
    num_warps: int
    num_stages: int
    ahead: int = 1
    lets_in: bool = True


# By head size: of 128 elements as measured in a decode step of one row on one NVIDIA H200 on 2026-11-30, others alike.
_TILES = {
    64: ProjectedTile(64, 4, 2),
    128: ProjectedTile(64, 4, 2),
    256: ProjectedTile(32, 4, 2),
}
_NARROW = ProjectedTile(32, 2, 3, ahead=2)  # where the plan is for tiles of 32 columns, of 128 elements


def projects(decode: PagedDecode) -> bool:
    """Whether `attend_projected` serves the step that was planned."""
    spec, geometry = decode.spec, decode.geometry
    fits = spec.bits == 16 and spec.k_dim == spec.v_dim and spec.k_dim in _WIDTHS
    pays = geometry.rows <= MOST_ROWS and spec.group >= LEAST_GROUP
    return fits and pays and geometry.queries == 1 and not geometry.gaps


def attend_projected(
    decode: PagedDecode,
    qkv: Tensor,
    rotation: Rotation,
    weights: HeadWeights,
    rows: Tensor,
    k: StoredRows,
    v: StoredRows,
    table: Tensor,
    out: Tensor,
) -> None:
    """Attend with the heads of qkv [T, (Hq + 2 Hkv) · D], contiguous rows, and store their keys and values.

    `decode` was planned for the step, T sequences of one token each; `rows` [T] int64 are where its keys and values go,
    nowhere if there is no such row. Table and out are those of `PagedDecode.run`. What is stored already must be older
    than the kernel in front: see `launch.py`.
    """
    spec, geometry = decode.spec, decode.geometry
    norms, bias = weights.norms, weights.bias
    tile = _NARROW if spec.k_dim == 128 and geometry.tile.block_n == 32 else _TILES[spec.k_dim]
    items, partial, lse = decode.buffers
    dependent = dependent_launch(qkv.device)
    decode_projected[(spec.num_kv_heads, geometry.items)](
        qkv,
        rotation.cos_table if bias is None else bias,
        rotation.positions,
        rotation.cos_table,
        rotation.sin_table,
        rotation.cos_table if norms is None else norms.q,
        rotation.cos_table if norms is None else norms.k,
        rows,
        out,
        partial,
        lse,
        k.data,
        v.data,
        table,
        items,
        spec.scale * math.log2(math.e),
        k.data.shape[0] // spec.block_size,
        k.data.shape[0],
        rotation.cos_table.shape[0],
        qkv.stride(0),
        0.0 if norms is None else norms.eps,
        HQ=spec.num_q_heads,
        HKV=spec.num_kv_heads,
        DIM=spec.k_dim,
        BLOCK_SIZE=spec.block_size,
        BLOCK_M=16,
        BLOCK_N=tile.block_n,
        AHEAD=tile.ahead,
        HAS_NORMS=norms is not None,
        HAS_BIAS=bias is not None,
        PRECISE=geometry.precise,
        DEPENDENT=dependent,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **({"launch_pdl": True} if dependent else {}),
    )
    if geometry.merges:
        block_d, warps = (32, 1) if spec.v_dim <= 64 else (64, 2)
        decode_merge[(geometry.rows, spec.num_q_heads, spec.v_dim // block_d)](
            out,
            partial,
            lse,
            items[geometry.items * ITEM_FIELDS :],
            lse,
            HQ=spec.num_q_heads,
            QUERIES=1,
            DV=spec.v_dim,
            BLOCK_D=block_d,
            BLOCK_S=32,
            HAS_SINKS=False,
            DEPENDENT=dependent,
            LETS_IN=tile.lets_in,
            num_warps=warps,
            **({"launch_pdl": True} if dependent else {}),
        )
