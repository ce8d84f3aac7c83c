"""Launch settings of paged decode by head size, codecs and load, as measured. Chooses; knows no kernel.

Measured on one NVIDIA H200 on 2026-11-30, Triton 3.6, block 16 (docs/benchmark_results/2026-11-30-h200-decode.md).
On other cards they are a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.attention_parts import RAGGED_CUTS
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
    """`usual` for most loads, and what is better for some, if anything is.

    A load is even if its longest sequence has at most `even_eighths` eighths of what its sequences have on average, and
    ragged with more than 12. One between is cut into `uneven` programs.

    `few`: at most `few_programs` sequences times K/V heads: the widest tile that still fills the card.
    `full`: sequences alone make between `full_from` and `full_to` programs; each stays whole.
    `many`: they make at least `many_from`, and none has more columns than one of `many_slots` programs at a time has in
    all; each stays whole, for the longest are begun first. `some`: the same of fewer, in wider tiles.
    `long`: at least `long_from` columns times K/V heads.
    `alone`: one sequence of at least `alone_from` columns whose query heads share a K/V head by `PROJECTED_GROUP` and
    more, so that the kernel that attends projects, too. Shorter ones take the usual.
    """

    usual: Setting
    even_eighths: int = 12
    uneven: int = 0
    few: Setting | None = None
    few_programs: int = 128
    full: DecodeTile | None = None
    full_from: int = 397
    full_to: int = 528
    many: DecodeTile | None = None
    many_from: int = 1152
    many_slots: int = 528
    some: DecodeTile | None = None
    some_slots: int = 264
    long: Setting | None = None
    long_from: int = 1 << 20
    alone: Setting | None = None
    alone_from: int = 24_576


PROJECTED_GROUP = 4  # query heads per K/V head from which on `decode_projected.py` serves a step of one row

_NARROW = Setting(DecodeTile(32, 1, 3), 1056, 1056)

# By bits of an element (the fewest of K and V) and head size.
_SETTINGS = {
    (16, 64): HeadSettings(Setting(DecodeTile(32, 1, 4), 528, 528)),
    (16, 128): HeadSettings(
        Setting(DecodeTile(64, 4, 3), 264, 384),
        even_eighths=9,
        uneven=528,
        full=DecodeTile(32, 2, 3),
        many=DecodeTile(32, 2, 3),
        some=DecodeTile(64, 4, 3),
        alone=Setting(DecodeTile(32, 2, 3), 528, 528),
    ),
    (16, 256): HeadSettings(Setting(DecodeTile(32, 4, 3), 264, 384), few=Setting(DecodeTile(64, 8, 3), 132, 264)),
    (8, 64): HeadSettings(_NARROW),
    (8, 128): HeadSettings(_NARROW),
    (8, 256): HeadSettings(Setting(DecodeTile(64, 4, 2), 264, 384)),
    (4, 64): HeadSettings(Setting(DecodeTile(64, 1, 3), 1056, 1056)),
    (4, 128): HeadSettings(_NARROW),
    (4, 256): HeadSettings(Setting(DecodeTile(64, 4, 2), 264, 384), long=_NARROW),
}

# The same for the kernel that reads codes.
_CODES = {
    (8, 64): HeadSettings(Setting(DecodeTile(32, 1, 3), 1056, 1056)),
    (8, 128): HeadSettings(Setting(DecodeTile(32, 1, 3), 1056, 1056)),
    (8, 256): HeadSettings(Setting(DecodeTile(16, 1, 3), 528, 528), long=Setting(DecodeTile(16, 1, 3), 1056, 1056)),
    (4, 64): HeadSettings(Setting(DecodeTile(32, 1, 3), 1584, 1584), long=Setting(DecodeTile(32, 1, 3), 2112, 2112)),
    (4, 128): HeadSettings(Setting(DecodeTile(32, 1, 3), 1584, 1584)),
    (4, 256): HeadSettings(Setting(DecodeTile(16, 1, 3), 528, 528), long=Setting(DecodeTile(16, 1, 3), 1056, 1056)),
}

LEAST_CHUNK = 64


def choose(
    dim: int, bits: int, num_kv_heads: int, lengths: NDArray[np.int64], codes: bool = False, *, group: int = 1
) -> tuple[DecodeTile, int, int]:
    """Tile, chunk length and most chunks for sequences that see `lengths` columns, stored in `bits` per element.

    `codes` is for the kernel that `decode_codes.py` has; `group` query heads share a K/V head.

    How many chunks there may be depends on the number of `lengths`, those of 0 too, and on the kind of load; not on how
    long they are.
    """
    settings = _settings(dim, bits, codes)
    seen = lengths[lengths > 0]
    if not len(seen):
        return settings.usual.tile, LEAST_CHUNK, 0
    least, total = len(seen) * num_kv_heads, int(seen.sum())
    eighths = int(seen.max()) * len(seen) * 8
    even, ragged = eighths <= total * settings.even_eighths, eighths > total * 12
    if settings.full is not None and even and settings.full_from <= least <= settings.full_to:
        return settings.full, int(seen.max()), len(lengths)
    slots = total * num_kv_heads // int(seen.max())
    if settings.many is not None and least >= settings.many_from and slots >= settings.many_slots:
        return settings.many, int(seen.max()), len(lengths)
    if settings.some is not None and not even and slots >= settings.some_slots:
        return settings.some, int(seen.max()), len(lengths)
    setting = settings.usual
    if settings.alone is not None and len(lengths) == 1 and group >= PROJECTED_GROUP:
        setting = settings.alone if total >= settings.alone_from else settings.usual
    elif settings.long is not None and total * num_kv_heads >= settings.long_from:
        setting = settings.long
    elif settings.few is not None and even and least <= settings.few_programs:
        setting = settings.few
    programs = setting.programs if even else setting.ragged if ragged else settings.uneven
    if ragged and len(lengths) * num_kv_heads * 2 > programs:
        programs = len(lengths) * num_kv_heads * RAGGED_CUTS
    most = max(len(lengths), programs // num_kv_heads)
    # Rows of padding give their chunks to nobody: a merge costs more than cutting a few sequences is worth.
    return setting.tile, chunk_length(seen, max(len(seen), programs // num_kv_heads), LEAST_CHUNK), most


def _settings(dim: int, bits: int, codes: bool = False) -> HeadSettings:
    return (_CODES if codes else _SETTINGS)[bits, 64 if dim <= 64 else 128 if dim <= 128 else 256]
