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
_ROWS = (8, 16, 32, 64, 128, 256)  # a setting serves all counts of rows up to its own

Tiles = tuple[StreamedTile | None, ...]  # one for each of _ROWS

_T = StreamedTile

PRODUCTS: Mapping[tuple[int, int], Tiles] = {
    (2048, 2048): (_T(64, 64, 64, 8, 2), None, _T(64, 64, 64, 6, 4), _T(64, 64, 64, 6, 4), None, None),
    (4096, 2048): (None, None, _T(64, 64, 64, 8, 2), None, None, None),
    (2048, 6144): (None, None, None, _T(64, 64, 64, 8, 4), _T(128, 64, 64, 6, 4), None),
    (6144, 4096): (None, None, _T(64, 128, 64, 6, 2), _T(64, 64, 64, 6, 2), None, None),
    (4096, 4096): (None, None, None, _T(64, 64, 64, 6, 2), None, None),
    (4096, 14336): (None, None, None, _T(64, 64, 64, 8, 2), None, None),
}
GATED: Mapping[tuple[int, int], Tiles] = {
    (6144, 2048): (None, None, _T(64, 64, 64, 8), _T(64, 32, 64, 6), _T(128, 64, 64, 6), None),
    (14336, 4096): (_T(64, 128, 64, 4), _T(64, 128, 64, 4), _T(64, 128, 64, 4), _T(64, 64, 128, 2), None, None),
}


def streamed_tile(num_rows: int, n: int, k: int) -> StreamedTile | None:
    """For `num_rows` rows and a weight [n, k]."""
    return _of(PRODUCTS, num_rows, (n, k))


def streamed_gated_tile(num_rows: int, n: int, k: int) -> StreamedTile | None:
    """For `num_rows` rows and a gate [n, k], with up below it, and the activation of both."""
    return _of(GATED, num_rows, (n, k))


def _of(table: Mapping[tuple[int, int], Tiles], num_rows: int, shape: tuple[int, int]) -> StreamedTile | None:
    if not LEAST_ROWS <= num_rows <= _ROWS[-1] or shape not in table:
        return None
    return table[shape][bisect_left(_ROWS, num_rows)]
