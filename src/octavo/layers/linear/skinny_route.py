"""16-bit weights on a GPU: few rows through kernels of our own where those were measured to be faster, else the
library's matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.rows import Activation, look_up
from octavo.kernels.triton.gated_product import (
    exact_gated_tile,
    gated_tile,
    multiply_gated,
    multiply_gated_exactly,
)
from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyScratch, SkinnyTile, multiply
from octavo.kernels.triton.skinny_table import ROWS, bucket, dense_tiles, exact_split_rows, exact_tile
from octavo.layers.linear.dense_route import stack
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import QuantTensor


class SkinnyWeight:
    """A weight [N, K]; others may read the tensor itself."""

    def __init__(self, weight: Tensor, scratch: SkinnyScratch, *, exact: bool = False) -> None:
        self.weight = weight
        self._scratch = scratch
        self._exact = exact
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

    def apply_gated(self, x: Tensor, activation: Activation) -> Tensor | None:
        gelu = activation == "gelu_tanh"
        if self._exact:
            exact = exact_gated_tile(len(x), self._exact_tile(len(x)))
            return None if exact is None else multiply_gated_exactly(x, self.weight, gelu, exact)
        tile = gated_tile(len(x), len(self.weight) // 2, self.weight.shape[1])
        return None if tile is None else multiply_gated(x, self.weight, gelu, tile)

    def lookup(self, ids: Tensor) -> Tensor:
        return look_up(self.weight, ids)

    def _exact_tile(self, rows: int) -> SkinnyTile:
        return exact_tile(self.weight.shape[0], self.weight.shape[1], rows, self._scratch.shared_bytes)

    def _skinny(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """x · weightᵀ by our kernels; None where the library's product is to serve."""
        out = torch.empty(len(x), len(self.weight), dtype=dtype, device=x.device)
        if self._exact:
            if len(x):
                multiply(x, self.weight, out, self._exact_tile(len(x)), self._scratch)
            return out
        chosen = self._tiles[bucket(len(x))] if 0 < len(x) <= MAX_ROWS else None
        if chosen is None:
            return None
        multiply(x, self.weight, out, chosen, self._scratch)
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
        return SkinnyWeight(stack(shards, self._dtype).to(self._device), self._scratch, exact=self._exact)

    def packed_bytes(self, shard: QuantTensor) -> int:
        return math.prod(shard.shape) * self._dtype.itemsize
