"""Which products of several rows stream their weights on Hopper, in which tiles, as measured; None where others serve.

Measured in decode steps on one NVIDIA H200 on 2026-11-30, Triton 3.6 (docs/log.md). There these come before the tiles
of `skinny_table.py` and `gated_product.py`. Chooses; knows no kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamedTile:
    """A program multiplies `block_m` rows of x by `block_n` of the weight, or of gate and up each.

    It takes `block_k` columns at a time, of which `num_stages` times as many are under way; all columns are cut into
    `splits`, whose sums are parts of the product.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    splits: int = 1

    @property
    def num_warps(self) -> int:
        return 4 if self.block_m == 64 else 8


LEAST_ROWS = 2
_FEW = (8, 16, 32, 64)  # a setting serves all counts of rows up to its own,
_STEP, _MOST = 32, 256  # and of more rows 32 counts of them, as steps of these are padded

Tiles = Mapping[int, StreamedTile]  # by the most rows that one serves

_T = StreamedTile

PRODUCTS: Mapping[tuple[int, int], Tiles] = {
    (2048, 2048): {8: _T(64, 64, 64, 8, 2), 32: _T(64, 64, 64, 6, 4), 64: _T(64, 64, 64, 6, 4)},
    (4096, 2048): {32: _T(64, 64, 64, 8, 2)},
    (2048, 6144): {
        64: _T(64, 64, 64, 8, 4),
        96: _T(128, 64, 64, 6, 4),
        128: _T(128, 64, 64, 6, 4),
        224: _T(128, 128, 64, 6, 4),
    },
    (6144, 4096): {32: _T(64, 128, 64, 6, 2), 64: _T(64, 64, 64, 6, 2)},
    (4096, 4096): {
        64: _T(64, 64, 64, 6, 2),
        96: _T(128, 128, 64, 6, 4),
        128: _T(128, 64, 64, 8, 2),
        160: _T(64, 256, 64, 5, 2),
        192: _T(64, 256, 64, 5, 2),
        224: _T(128, 128, 64, 6, 2),
    },
    (4096, 14336): {
        64: _T(64, 64, 64, 8, 2),
        96: _T(128, 128, 64, 6, 4),
        128: _T(128, 64, 64, 8, 2),
        224: _T(128, 256, 64, 4, 4),
        256: _T(128, 128, 64, 6, 2),
    },
}
GATED: Mapping[tuple[int, int], Tiles] = {
    (6144, 2048): {
        32: _T(64, 64, 64, 8),
        64: _T(64, 32, 64, 6),
        96: _T(128, 64, 64, 6),
        128: _T(128, 64, 64, 6),
    },
    (14336, 4096): {
        8: _T(64, 128, 64, 4),
        16: _T(64, 128, 64, 4),
        32: _T(64, 128, 64, 4),
        64: _T(64, 64, 128, 2),
        128: _T(128, 64, 64, 3),
    },
}


def streamed_tile(num_rows: int, n: int, k: int) -> StreamedTile | None:
    """For `num_rows` rows and a weight [n, k]."""
    return _of(PRODUCTS, num_rows, (n, k))


def streamed_gated_tile(num_rows: int, n: int, k: int) -> StreamedTile | None:
    """For `num_rows` rows and a gate [n, k], with up below it, and the activation of both."""
    return _of(GATED, num_rows, (n, k))


def _of(table: Mapping[tuple[int, int], Tiles], num_rows: int, shape: tuple[int, int]) -> StreamedTile | None:
    if not LEAST_ROWS <= num_rows <= _MOST or shape not in table:
        return None
    most = _FEW[bisect_left(_FEW, num_rows)] if num_rows <= _FEW[-1] else -(-num_rows // _STEP) * _STEP
    return table[shape].get(most)
