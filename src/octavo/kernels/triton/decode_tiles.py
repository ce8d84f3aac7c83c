"""Launch settings of paged decode by head size, codecs and load, as measured. Chooses; knows no kernel.

Measured on one NVIDIA H200 on 2026-11-30, Triton 3.6, float16, block 16
(docs/benchmark_results/2026-11-30-h200-decode.md). On other cards they are a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.triton.decode_plan import chunk_length


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """`block_n` columns at a time, `num_warps` warps, `num_stages` tiles under way at once."""

    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Setting:
    """`tile`, and how many programs a load is cut into: `programs`, or `ragged` where lengths differ much."""

    tile: DecodeTile
    programs: int
    ragged: int


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """`usual` for most loads; `few` where at most `few_programs` sequences times K/V heads share the card (the widest
    tile that still fills it); `full` where sequences alone make between `full_from` and `full_to` programs, each whole.
    """

    usual: Setting
    few: Setting | None = None
    few_programs: int = 0
    full: DecodeTile | None = None
    full_from: int = 397
    full_to: int = 528


_SETTINGS = {
    64: HeadSettings(Setting(DecodeTile(32, 1, 4), 528, 528)),
    128: HeadSettings(Setting(DecodeTile(64, 4, 3), 264, 384), full=DecodeTile(32, 2, 4)),
    256: HeadSettings(
        Setting(DecodeTile(32, 4, 3), 264, 264), few=Setting(DecodeTile(64, 8, 3), 132, 264), few_programs=128
    ),
}
_QUANTISED = HeadSettings(Setting(DecodeTile(64, 4, 3), 528, 528))

LEAST_CHUNK = 64
# Where sequences of differing lengths make more programs than the card holds at once, how often to cut an average one.
_RAGGED_CUTS = 8


def exact_tile(dim: int, quantised: bool) -> DecodeTile:
    """The one tile for heads of `dim` elements whatever the load: a row's bits depend on it."""
    return _settings(dim, quantised).usual.tile


def choose(dim: int, quantised: bool, num_kv_heads: int, lengths: NDArray[np.int64]) -> tuple[DecodeTile, int]:
    """Tile and chunk length for sequences that see `lengths` columns."""
    settings = _settings(dim, quantised)
    seen = lengths[lengths > 0]
    if not len(seen):
        return settings.usual.tile, LEAST_CHUNK
    least = len(seen) * num_kv_heads
    even = int(seen.max()) * len(seen) * 2 <= int(seen.sum()) * 3
    if settings.full is not None and even and settings.full_from <= least <= settings.full_to:
        return settings.full, int(seen.max())
    setting = settings.few if settings.few is not None and even and least <= settings.few_programs else settings.usual
    programs = setting.programs if even else setting.ragged
    if not even and least > programs:
        programs = least * _RAGGED_CUTS
    return setting.tile, chunk_length(seen, max(1, programs // num_kv_heads), LEAST_CHUNK)


def _settings(dim: int, quantised: bool) -> HeadSettings:
    if quantised:
        return _QUANTISED
    return _SETTINGS[64 if dim <= 64 else 128 if dim <= 128 else 256]
