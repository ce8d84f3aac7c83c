"""Weights in the compute dtype through the library's own matrix product: float32 on CPU, any dtype on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.rows import look_up
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import ComputedTensor, QuantTensor

_CPU = torch.device("cpu")


class DenseWeight:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    @property
    def num_bytes(self) -> int:
        return self.weight.numel() * self.weight.itemsize

    def apply(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight)

    def apply_float32(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float32:
            return F.linear(x, self.weight)
        return torch.mm(x.to(self.weight.dtype), self.weight.t(), out_dtype=torch.float32)

    def lookup(self, ids: Tensor) -> Tensor:
        return look_up(self.weight, ids)


class DenseRoute:
    """Not row-invariant: the library picks its kernel, and so its order of addition, by the number of rows."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    @property
    def properties(self) -> RouteProperties:
        error = 0.0 if self._dtype == torch.float32 else torch.finfo(self._dtype).eps / 2
        name = str(self._dtype).removeprefix("torch.")
        return RouteProperties(name, False, error)

    @property
    def serves_embedding(self) -> bool:
        return True

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> DenseWeight:
        return DenseWeight(stack(shards, self._dtype, self._device))

    def packed_bytes(self, shard: QuantTensor) -> int:
        return math.prod(shard.shape) * self._dtype.itemsize


def stack(shards: Sequence[QuantTensor], dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """Shards [N_i, K] dequantised into one [sum N_i, K] tensor, without holding any of them twice in float32."""
    if len(shards) == 1:
        return _values(shards[0], dtype, device).to(device)
    shape = sum(shard.shape[0] for shard in shards), *shards[0].shape[1:]
    out = torch.empty(shape, dtype=dtype, device=device)
    start = 0
    for shard in shards:
        out[start : start + shard.shape[0]] = _values(shard, dtype, device)
        start += shard.shape[0]
    return out


def _values(shard: QuantTensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of one that is in no file on `device`; of others on the host."""
    return shard.values_on(device, dtype) if isinstance(shard, ComputedTensor) else shard.dequantize(dtype)
