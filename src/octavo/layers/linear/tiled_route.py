"""16-bit weights on a CPU, multiplied in tiles of at most 32 rows: the same bits for a row in every batch.

oneDNN chooses blocking and instructions by shape, so a whole prefill and a single row differ in the last bits. In
tiles of up to TILE rows over a weight packed for TILE rows it takes one kernel on most processors, which
`differing_count` verifies for each shape at start-up. Where it does not hold (AVX-512 without bfloat16 has another
kernel for a single row), every tile is padded to exactly TILE rows, which cannot differ.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.layers.linear.dense_route import stack
from octavo.layers.linear.route import RouteProperties
from octavo.layers.linear.row_probe import differing_count
from octavo.layers.quant_tensor import QuantTensor

logger = logging.getLogger(__name__)

TILE = 32

_linear_pointwise = torch.ops.mkldnn._linear_pointwise


class TiledWeight:
    """A weight [N, K] in 16 bit; `packed` says whether it is in oneDNN's own layout."""

    def __init__(self, weight: Tensor, packed: bool, uniform: bool, num_bytes: int) -> None:
        self._weight = weight
        self._dtype = weight.dtype
        self._packed = packed
        self._uniform = uniform
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def apply(self, x: Tensor) -> Tensor:
        x = x.to(self._dtype)
        if x.shape[0] <= TILE:
            return self._tile(x)
        return torch.cat([self._tile(tile) for tile in x.split(TILE)])

    def apply_float32(self, x: Tensor) -> Tensor:
        """The product and, in a second pass, what rounding it to 16 bit lost: about 2⁻¹⁷ relative to the larger."""
        return torch.cat([self._tile_float32(tile) for tile in x.to(self._dtype).split(TILE)])

    def _tile(self, x: Tensor) -> Tensor:
        if self._uniform:
            return self._multiply(x)
        return self._multiply(_pad(x))[: x.shape[0]]

    def _multiply(self, x: Tensor) -> Tensor:
        if self._packed:
            y: Tensor = _linear_pointwise(x, self._weight, None, "none", [], "")
            return y
        return F.linear(x, self._weight)

    def _tile_float32(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if not self._uniform:
            x = _pad(x)
        if not self._packed:
            return F.linear(x.float(), self._weight.float())[:rows]
        rounded = _linear_pointwise(x, self._weight, None, "none", [], "")
        # The kernel adds -rounded to its float32 sum before it rounds, so this is the part that was lost.
        lost = _linear_pointwise(x, -rounded, self._weight, None, "add")
        whole: Tensor = rounded.float() + lost.float()
        return whole[:rows]


class TiledRoute:
    """bfloat16 or float16 on a CPU. Row-invariant by construction or by probe."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._can_pack = _can_pack(dtype)
        self._uniform: dict[tuple[int, int], bool] = {}

    @property
    def properties(self) -> RouteProperties:
        name = "tiled " + str(self._dtype).removeprefix("torch.")
        return RouteProperties(name, True, torch.finfo(self._dtype).eps / 2)

    @property
    def serves_embedding(self) -> bool:
        return False

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> TiledWeight:
        weight = stack(shards, self._dtype)
        num_bytes = weight.numel() * weight.itemsize
        shape = (weight.shape[0], weight.shape[1])
        if not self._can_pack:
            return TiledWeight(weight, packed=False, uniform=False, num_bytes=num_bytes)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, TILE)
        uniform = TiledWeight(packed, packed=True, uniform=True, num_bytes=num_bytes)
        if shape not in self._uniform:
            self._uniform[shape] = _is_uniform(self._dtype) and _same_bits(uniform, shape[1])
            if not self._uniform[shape]:
                logger.info(
                    "products of %d by %d weights are padded to %d rows: smaller ones differ here", *shape, TILE
                )
        if self._uniform[shape]:
            return uniform
        return TiledWeight(packed, packed=True, uniform=False, num_bytes=num_bytes)

    def packed_bytes(self, shard: QuantTensor) -> int:
        return math.prod(shard.shape) * self._dtype.itemsize


def _same_bits(weight: TiledWeight, columns: int) -> bool:
    return differing_count((weight.apply, weight.apply_float32), columns, torch.device("cpu")) is None


@cache
def _is_uniform(dtype: torch.dtype) -> bool:
    """Whether a weight of middling size gives rows the same bits at all counts. A small one's own probe might miss the
    few bits that differ.
    """
    weight = torch.randn(256, 1024, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TILE)
    return _same_bits(TiledWeight(packed, packed=True, uniform=True, num_bytes=0), weight.shape[1])


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _pad(x: Tensor) -> Tensor:
    return x if x.shape[0] == TILE else F.pad(x, (0, 0, 0, TILE - x.shape[0]))
