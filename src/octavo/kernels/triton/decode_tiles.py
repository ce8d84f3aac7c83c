"""Launch settings of paged decode by head size and codec, as measured. Chooses; knows no kernel.

Measured on one NVIDIA H200: not yet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """`block_n` columns at a time, `num_warps` warps, `num_stages` tiles under way at once."""

    block_n: int
    num_warps: int
    num_stages: int


def decode_tile(dim: int, quantised: bool) -> DecodeTile:
    """Settings for heads of `dim` elements."""
    if quantised:
        return DecodeTile(64, 4, 3)
    if dim <= 64:
        return DecodeTile(32, 1, 4)
    if dim <= 128:
        return DecodeTile(64, 4, 3)
    return DecodeTile(32, 4, 3)


def target_programs(total_bytes: int) -> int:
    """How many programs share a step's K/V of `total_bytes`."""
    return 512 if total_bytes > 8 << 20 else 256
