"""16-bit weights on a GPU: few rows through kernels of our own where those were measured to be faster, else the
library's matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.rows import Activation, HalfNormed, look_up
from octavo.kernels.triton.gated_product import GatedTile, exact_gated_tile, gated_tile, multiply_gated
from octavo.kernels.triton.launch import has_warpgroup_products
from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyScratch, SkinnyTile, multiply
from octavo.kernels.triton.skinny_table import ROWS, bucket, dense_tiles, exact_split_rows, exact_tile
from octavo.kernels.triton.streamed_table import StreamedTile, streamed_gated_tile, streamed_tile
from octavo.layers.linear.dense_route import stack
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import QuantTensor


class SkinnyWeight:
    """A weight [N, K]; others may read the tensor itself."""

    def __init__(self, weight: Tensor, scratch: SkinnyScratch, *, exact: bool = False) -> None:
        self.weight = weight
        self._scratch = scratch
        self._exact = exact
        self._streams = not exact and has_warpgroup_products(weight.device) and weight.shape[1] % 8 == 0
        if exact:
            for rows in (*ROWS, exact_split_rows(len(weight))):
                scratch.reserve(self._exact_tile(rows), rows, len(weight))
            return
        self._tiles = dense_tiles(weight.shape[0], weight.shape[1], scratch.shared_bytes)
        for rows, tile in zip(ROWS, self._tiles, strict=True):
            if tile is not None:
                scratch.reserve(tile, rows, len(weight))

    @property
    def num_bytes(self) -> int:
        return self.weight.numel() * self.weight.itemsize

    def apply(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        y = self._skinny(x, self.weight.dtype)
        return F.linear(x, self.weight) if y is None else y

    def apply_float32(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        y = self._skinny(x, torch.float32)
        return torch.mm(x, self.weight.t(), out_dtype=torch.float32) if y is None else y

    def apply_gated(self, x: Tensor | HalfNormed, activation: Activation) -> Tensor | None:
        streamed = self._streamed_gated_tile(x)
        if streamed is not None:
            assert isinstance(x, Tensor)
            return self._multiply_streamed(x, streamed, self.weight.dtype, gelu=activation == "gelu_tanh")
        half = isinstance(x, HalfNormed)
        tile = self._gated_tile(len(x.weighted if isinstance(x, HalfNormed) else x))
        if tile is None or (half and not isinstance(tile, GatedTile)):
            return None
        return multiply_gated(x, self.weight, activation == "gelu_tanh", tile)

    def apply_in_parts(self, x: Tensor) -> Tensor | None:
        tile = self._streamed_tile(len(x))
        return None if tile is None or tile.splits == 1 else self._multiply_streamed(x, tile, torch.float32)

    def apply_half_normed(self, x: HalfNormed) -> Tensor | None:
        tile = self._tile(len(x.weighted))
        if self._exact or tile is None or not tile.whole_rows:
            return None
        out = torch.empty(len(x.weighted), len(self.weight), dtype=self.weight.dtype, device=self.weight.device)
        multiply(x, self.weight, out, tile, self._scratch)
        return out

    def add_to_(self, total: Tensor, x: Tensor) -> bool:
        tile = self._tile(len(x))
        if self._streamed_tile(len(x)) is not None:
            return False
        if self._exact or tile is None or 1 < len(x) <= MAX_ROWS // 2:  # between, nobody has measured
            return False
        multiply(x, self.weight, total, tile, self._scratch, add=True)
        return True

    def add_for_norm_(self, total: Tensor, x: Tensor, weight: Tensor, eps: float) -> HalfNormed | None:
        tile = self._tile(len(x))
        # Before they are divided, rows may be out of float16's range.
        if self._exact or len(x) != 1 or tile is None or not tile.whole_rows or self.weight.dtype != torch.bfloat16:
            return None
        half = tile.half_normed(total, self.weight.dtype, eps)
        multiply(x, self.weight, total, tile, self._scratch, add=True, leaves=(weight, half))
        return half

    def lookup(self, ids: Tensor) -> Tensor:
        return look_up(self.weight, ids)

    def _exact_tile(self, rows: int) -> SkinnyTile:
        return exact_tile(self.weight.shape[0], self.weight.shape[1], rows, self._scratch.shared_bytes)

    def _tile(self, rows: int) -> SkinnyTile | None:
        """None for no rows, and where the library's product is to serve."""
        if self._exact:
            return self._exact_tile(rows) if rows else None
        return self._tiles[bucket(rows)] if 0 < rows <= MAX_ROWS else None

    def _gated_tile(self, rows: int) -> GatedTile | SkinnyTile | None:
        if self._exact:
            return exact_gated_tile(rows, self._exact_tile(rows))
        return gated_tile(rows, len(self.weight) // 2, self.weight.shape[1], self._scratch.shared_bytes)

    def _streamed_tile(self, rows: int) -> StreamedTile | None:
        return streamed_tile(rows, *self.weight.shape) if self._streams else None

    def _streamed_gated_tile(self, x: Tensor | HalfNormed) -> StreamedTile | None:
        if not self._streams or isinstance(x, HalfNormed):
            return None
        return streamed_gated_tile(len(x), len(self.weight) // 2, self.weight.shape[1])

    def _multiply_streamed(
        self, x: Tensor, tile: StreamedTile, dtype: torch.dtype, *, gelu: bool | None = None
    ) -> Tensor:
        from octavo.kernels.triton.streamed_product import multiply_streamed

        return multiply_streamed(x.to(self.weight.dtype), self.weight, tile, dtype, gelu=gelu)

    def _skinny(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """x · weightᵀ by our kernels; None where the library's product is to serve."""
        streamed = self._streamed_tile(len(x))
        if streamed is not None and streamed.splits == 1:
            return self._multiply_streamed(x, streamed, dtype)
        tile = self._tile(len(x))
        if tile is None:
            return None
        out = torch.empty(len(x), len(self.weight), dtype=dtype, device=x.device)
        multiply(x, self.weight, out, tile, self._scratch)
        return out


class SkinnyRoute:
    """bfloat16 or float16. Row-invariant if `exact`; else kernel and order of addition go by the number of rows."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, scratch: SkinnyScratch, *, exact: bool = False
    ) -> None:
        self._exact = exact
        self._dtype = dtype
        self._device = device
        self._scratch = scratch

    @property
    def properties(self) -> RouteProperties:
        name = "exact " * self._exact + str(self._dtype).removeprefix("torch.")
        return RouteProperties(name, self._exact, torch.finfo(self._dtype).eps / 2)

    @property
    def serves_embedding(self) -> bool:
        return True

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> SkinnyWeight:
        return SkinnyWeight(stack(shards, self._dtype, self._device), self._scratch, exact=self._exact)

    def packed_bytes(self, shard: QuantTensor) -> int:
        return math.prod(shard.shape) * self._dtype.itemsize
