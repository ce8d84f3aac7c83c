"""8-bit weights on a CPU, one scale per output row: half the memory of bfloat16, at some loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.layers.linear.dense_route import stack
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import QuantTensor


class Int8Weight:
    """codes [N, K] int8 and scale [N] in the compute dtype; w ≈ codes · scale."""

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self._codes = codes
        self._scale = scale

    @property
    def num_bytes(self) -> int:
        return self._codes.numel() + self._scale.numel() * self._scale.itemsize

    def apply(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int8pack_mm(x.to(self._scale.dtype), self._codes, self._scale)
        return y

    def apply_float32(self, x: Tensor) -> Tensor:
        return self.apply(x).float()


class Int8Route:
    """Symmetric rounding of each row to 127 steps. Row-invariant: the kernel adds in one order for every row."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    @property
    def properties(self) -> RouteProperties:
        return RouteProperties("int8", True, 0.5 / 127 + torch.finfo(self._dtype).eps / 2)

    @property
    def serves_embedding(self) -> bool:
        return False

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        if shards[0].shape[1] % 32:
            return f"int8 weights need a multiple of 32 columns, not {shards[0].shape[1]}"
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> Int8Weight:
        weight = stack(shards, torch.float32)
        scale = (weight.abs().amax(1) / 127).clamp_(min=1e-12).to(self._dtype)
        codes = (weight / scale.float()[:, None]).round_().clamp_(-128, 127).to(torch.int8)
        return Int8Weight(codes, scale)

    def packed_bytes(self, shard: QuantTensor) -> int:
        return shard.shape[0] * (shard.shape[1] + self._dtype.itemsize)
