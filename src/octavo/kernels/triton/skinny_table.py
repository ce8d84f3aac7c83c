"""Which setting multiplies few rows fastest, by shape, as measured; None where the library's own product is faster.

Measured on one NVIDIA H200 on 2026-11-30, Triton 3.6 (docs/benchmark_results/2026-11-30-h200-skinny-gemm.md). A shape
that was not measured gets the settings of the nearest one; on other cards all are a guess.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyTile

ROWS = (1, 2, 4, 8, 16, 32, 64)  # a setting serves all counts of rows up to its own
assert ROWS[-1] == MAX_ROWS

Shape = tuple[int, int]  # N, K
Tiles = tuple[SkinnyTile | None, ...]  # one for each of ROWS


def _sums(
    rows: int, n: int, k: int, warps: int, splits: int = 1, *, ahead: int = 1, lets_in: bool = True
) -> SkinnyTile:
    return SkinnyTile("reduce", rows, n, k, warps, ahead, splits, lets_in=lets_in)


def _dot(rows: int, n: int, k: int, stages: int, splits: int = 1) -> SkinnyTile:
    return SkinnyTile("dot", rows, n, k, 4, stages, splits)


def _swapped(rows: int, n: int, k: int, stages: int, splits: int = 1) -> SkinnyTile:
    return SkinnyTile("swapped", rows, n, k, 4, stages, splits)


def _codes(rows: int, n: int, warps: int, stages: int, splits: int = 1) -> SkinnyTile:
    return SkinnyTile("swapped", rows, n, 0, warps, stages, splits)


# 1, 2, 4, 8, 16, 32 and 64 rows.
_DENSE: Mapping[Shape, Tiles] = {
    (2048, 2048): (
        _sums(1, 4, 1024, 4, ahead=2),
        _sums(2, 4, 1024, 4),
        _sums(4, 2, 512, 2),
        _swapped(8, 64, 128, 5, 8),
        _swapped(16, 64, 256, 5, 4),
        _dot(32, 64, 256, 4, 4),
        _dot(64, 32, 128, 5, 2),
    ),
    (4096, 2048): (
        _sums(1, 4, 1024, 4, lets_in=False),
        _sums(2, 4, 512, 2),
        _swapped(8, 128, 128, 5, 4),
        _swapped(16, 64, 256, 5, 2),
        _swapped(16, 64, 256, 3, 2),
        None,
        _dot(64, 32, 128, 5),
    ),
    (12288, 2048): (
        _sums(1, 16, 256, 2),
        *[_swapped(8, 64, 128, 3)] * 2,
        *[_swapped(16, 64, 128, 3)] * 2,
        None,
        None,
    ),
    (2048, 6144): (
        _sums(1, 4, 1024, 8, ahead=2),
        _sums(2, 4, 1024, 4),
        *[_swapped(16, 64, 256, 3, 4)] * 3,
        _swapped(32, 64, 256, 3, 4),
        _swapped(64, 64, 128, 4, 4),
    ),
    (151936, 2048): (
        _sums(1, 4, 512, 2, ahead=2),
        _swapped(8, 128, 256, 3),
        _swapped(8, 128, 128, 3),
        *[_swapped(16, 64, 128, 3)] * 2,
        _swapped(32, 128, 64, 3),
        _swapped(64, 128, 128, 4),
    ),
    (6144, 4096): (
        _sums(1, 2, 512, 1, ahead=2),
        _sums(2, 4, 256, 2),
        *[None] * 4,
        _swapped(64, 64, 128, 4),
    ),
    (4096, 4096): (
        _sums(1, 4, 1024, 4, ahead=4),
        *[_swapped(16, 64, 128, 4, 4)] * 2,
        _swapped(16, 128, 128, 4, 4),
        _swapped(16, 64, 128, 4, 4),
        _swapped(32, 64, 256, 3, 2),
        _dot(64, 32, 128, 5),
    ),
    (28672, 4096): (_sums(1, 8, 256, 2), None, None, None, None, None, _swapped(64, 128, 128, 4)),
    (4096, 14336): (
        _sums(1, 8, 1024, 8),
        _sums(2, 2, 512, 2),
        _swapped(16, 64, 128, 4, 4),
        _swapped(16, 128, 128, 4, 4),
        _swapped(16, 64, 128, 4, 4),
        _swapped(32, 64, 256, 3, 2),
        _swapped(64, 64, 128, 4, 2),
    ),
    (128256, 4096): (
        _sums(1, 2, 512, 1, ahead=2),
        *[_swapped(8, 64, 256, 3)] * 3,
        _swapped(16, 128, 128, 3),
        _swapped(32, 64, 128, 3),
        _swapped(64, 128, 128, 4),
    ),
}

_FOUR_BITS: Mapping[Shape, tuple[SkinnyTile, ...]] = {
    (2048, 2048): (
        _sums(1, 8, 2048, 2),
        _sums(2, 16, 2048, 8),
        _sums(4, 32, 512, 8, 2),
        *[_codes(16, 128, 8, 2, 8)] * 2,
        *[_codes(64, 64, 4, 3, 8)] * 2,
    ),
    (4096, 2048): (_sums(1, 16, 1024, 4), *[_codes(16, 128, 8, 2, 8)] * 4, *[_codes(64, 128, 8, 3, 4)] * 2),
    (12288, 2048): (_sums(1, 32, 512, 8), *[_codes(16, 128, 8, 3, 2)] * 4, *[_codes(64, 64, 4, 4)] * 2),
    (2048, 6144): (_sums(1, 16, 2048, 8), *[_codes(16, 128, 4, 3, 16)] * 4, *[_codes(64, 64, 4, 3, 8)] * 2),
    (151936, 2048): (*[_codes(16, 256, 8, 3)] * 5, *[_codes(64, 256, 8, 3)] * 2),
    (6144, 4096): (_sums(1, 16, 1024, 4), *[_codes(16, 128, 4, 3, 8)] * 4, *[_codes(64, 64, 4, 3, 4)] * 2),
    (4096, 4096): (_sums(1, 16, 1024, 4), *[_codes(16, 128, 4, 3, 8)] * 4, *[_codes(64, 128, 8, 4, 4)] * 2),
    (28672, 4096): (_sums(1, 16, 512, 4), *[_codes(16, 64, 4, 4)] * 4, *[_codes(64, 256, 8, 3)] * 2),
    (4096, 14336): (_sums(1, 8, 2048, 2), *[_codes(16, 256, 8, 3, 8)] * 4, *[_codes(64, 128, 8, 4, 4)] * 2),
    (128256, 4096): (*[_codes(16, 256, 8, 3)] * 5, *[_codes(64, 256, 8, 3)] * 2),
}
_EIGHT_BITS: Mapping[Shape, tuple[SkinnyTile, ...]] = {
    (2048, 2048): (_sums(1, 16, 1024, 8), *[_codes(16, 128, 4, 4, 16)] * 4, *[_codes(64, 128, 8, 3, 8)] * 2),
    (12288, 2048): (*[_codes(16, 128, 4, 3, 4)] * 5, *[_codes(64, 128, 4, 3, 2)] * 2),
    (2048, 6144): (_codes(16, 256, 8, 3, 16), *[_codes(16, 128, 4, 4, 16)] * 4, *[_codes(64, 128, 8, 3, 8)] * 2),
    (151936, 2048): (*[_codes(16, 64, 4, 4)] * 5, *[_codes(64, 128, 8, 4)] * 2),
    (28672, 4096): (_sums(1, 16, 128, 2), *[_codes(16, 64, 4, 4)] * 4, *[_codes(64, 128, 8, 4)] * 2),
}

_EXACT_UNIT = 256  # columns; splits are multiples of it


def bucket(rows: int) -> int:
    """Index into what `dense_tiles` and `codes_tiles` give, for 1 to MAX_ROWS rows."""
    return bisect_left(ROWS, rows)


def dense_tiles(n: int, k: int, shared_bytes: int) -> Tiles:
    """For a weight [n, k] in 16 bit, one setting for each of ROWS; `shared_bytes` are what a program may have."""
    tiles = _DENSE[_nearest(_DENSE, n, k)]
    return tuple(tile if tile is not None and tile.shared_bytes <= shared_bytes else None for tile in tiles)


def codes_tiles(n: int, k: int, bits: int, shared_bytes: int) -> tuple[SkinnyTile, ...]:
    """For a weight [n, k] in codes of 4 or 8 bits, one setting for each of ROWS."""
    table = _FOUR_BITS if bits == 4 else _EIGHT_BITS
    return tuple(
        tile if tile.shared_bytes <= shared_bytes else replace(tile, block_n=64, num_warps=4, num_stages=2)
        for tile in table[_nearest(table, n, k)]
    )


def exact_tile(n: int, k: int, rows: int, shared_bytes: int) -> SkinnyTile:
    """For a weight [n, k] in 16 bit and any count of rows: a row's bits depend on nothing else.

    The columns of a split are the weight's alone, and within one they are added in one order whatever a tile's size is:
    by 16, which is what the matrix units take at once. Measured on an H200, for the shapes of the table above.
    """
    splits = max(1, min(4, 8192 // n))
    if rows <= 16 and splits == 4 and k <= 2048:
        tile = SkinnyTile("early", 16, 64, 512, 4, 1, splits)
    elif rows <= 16:
        stages = 3 if n < 10_000 or k <= 2048 else 5
        tile = SkinnyTile("swapped", 16, 64, 256 if n < 10_000 else 128, 4, stages, splits)
    elif rows <= 32:
        tile = SkinnyTile("swapped", 32, 64, 128, 4, 4, splits)
    elif rows <= MAX_ROWS:
        wide = n >= 20_000
        tile = SkinnyTile("swapped", 64, 128 if wide else 64, 64 if wide else 128, 4, 3 if n >= 10_000 else 4, splits)
    elif rows <= exact_split_rows(n):
        tile = SkinnyTile("swapped", 128, 128, 64, 8, 4, splits)
    else:
        tile = SkinnyTile("swapped", 128, 128, 64, 8, 4, folds=splits)
    if tile.shared_bytes > shared_bytes:
        tile = replace(tile, form="swapped", block_n=64, block_k=64, num_warps=4, num_stages=2)
    return replace(tile, unit=_EXACT_UNIT)


def exact_split_rows(n: int) -> int:
    """Up to how many rows tiles of many leave half of a device idle, so that splits have programs of their own."""
    return max(MAX_ROWS, 64 // -(-n // 128) * 128)


def exact_codes_tile(n: int, k: int, bits: int, rows: int, *, minima: bool, shared_bytes: int) -> SkinnyTile:
    """`exact_tile` for a weight of codes. For `minima` inputs are added up, in an order that tiles' heights decide."""
    few = codes_tiles(n, k, bits, shared_bytes)[bucket(8)]
    height = 16 if rows <= 16 and not minima else MAX_ROWS
    tile = replace(few, block_m=height)
    return tile if tile.shared_bytes <= shared_bytes else replace(tile, block_n=64, num_warps=4, num_stages=2)


def _nearest(table: Mapping[Shape, Tiles] | Mapping[Shape, tuple[SkinnyTile, ...]], n: int, k: int) -> Shape:
    if (n, k) in table:
        return n, k
    return min(table, key=lambda shape: abs(math.log2(shape[0] / n)) + abs(math.log2(shape[1] / k)))
