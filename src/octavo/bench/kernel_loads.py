"""The loads and head shapes that decode kernels are compared on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Query heads, K/V heads and head size of one attention layer."""

    num_q_heads: int
    num_kv_heads: int
    dim: int

    @property
    def name(self) -> str:
        return f"Hq{self.num_q_heads} Hkv{self.num_kv_heads} D{self.dim}"


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """One decode step: the context of each sequence, in tokens."""

    name: str
    lengths: tuple[int, ...]

    @property
    def even(self) -> bool:
        return len(set(self.lengths)) == 1

    def kv_bytes(self, shape: HeadShape, bytes_per_element: float = 2) -> int:
        """K and V of all tokens, read once."""
        return int(sum(self.lengths) * shape.num_kv_heads * shape.dim * 2 * bytes_per_element)


SHAPES = (HeadShape(16, 8, 128), HeadShape(24, 4, 256), HeadShape(32, 8, 64), HeadShape(32, 8, 128))

_K = 1024
LOADS = (
    DecodeLoad("1x1K", (_K,)),
    DecodeLoad("1x16K", (16 * _K,)),
    DecodeLoad("1x32K", (32 * _K,)),
    DecodeLoad("1x128K", (128 * _K,)),
    DecodeLoad("4x1K", (_K,) * 4),
    DecodeLoad("4x4K", (4 * _K,) * 4),
    DecodeLoad("4x16K", (16 * _K,) * 4),
    DecodeLoad("8x4K", (4 * _K,) * 8),
    DecodeLoad("8x32K", (32 * _K,) * 8),
    DecodeLoad("64x1K", (_K,) * 64),
    DecodeLoad("64x4K", (4 * _K,) * 64),
    DecodeLoad("128K + 7x8K", (128 * _K, *(8 * _K,) * 7)),
    DecodeLoad("4K + 7x256", (4 * _K, *(256,) * 7)),
    DecodeLoad("64 mixed 256...16K", tuple(256 + 251 * i for i in range(64))),
)
