"""Quantised weights on a CPU that need not be exact: few rows as `AffineRoute` has them, many by torch's bfloat16.

Faster for prompts where a CPU has tiles of bfloat16 (AMX), and takes the memory of a second form of each weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine
from octavo.layers.linear.affine_route import AffineRoute, AffineWeight
from octavo.layers.linear.dense_route import stack
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import QuantTensor

MANY = 128  # rows from which torch's products serve
_PACKED_FOR = 512
TABLES = ("model.embed_tokens.weight", "lm_head.weight")

_linear_pointwise = torch.ops.mkldnn._linear_pointwise


class PromptWeight(AffineWeight):
    """`wide` [N, K] bfloat16, in oneDNN's layout, serves products of many rows; `packed` others, and who reads it."""

    def __init__(self, packed: PackedAffine, wide: Tensor, wide_bytes: int) -> None:
        super().__init__(packed)
        self._wide = wide
        self._wide_bytes = wide_bytes

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._wide_bytes

    def apply(self, x: Tensor) -> Tensor:
        if len(x) < MANY:
            return super().apply(x)
        y: Tensor = _linear_pointwise(x.bfloat16(), self._wide, None, "none", [], "")
        return y.float()


class PromptRoute(AffineRoute):
    """What many rows multiply is rounded to bfloat16, and so are they. Not row-invariant.

    An embedding and an output head, which few rows ever meet, are as in `AffineRoute`.
    """

    @staticmethod
    def is_faster() -> bool:
        """Whether this CPU has what makes it worth its memory."""
        return bool(torch.cpu._is_amx_tile_supported() and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    @staticmethod
    def is_packed_from_file(shard: QuantTensor) -> bool:
        return False

    @property
    def properties(self) -> RouteProperties:
        error = super().properties.weight_error + torch.finfo(torch.bfloat16).eps / 2
        return RouteProperties(f"affine (bfloat16 from {MANY} rows)", False, error)

    def pack(self, shards: Sequence[QuantTensor]) -> AffineWeight:
        weight = super().pack(shards)
        if shards[0].name in TABLES:
            return weight
        wide = stack(shards, torch.bfloat16)
        packed = torch.ops.mkldnn._reorder_linear_weight(wide, _PACKED_FOR)
        return PromptWeight(weight.packed, packed, wide.numel() * wide.itemsize)

    def packed_bytes(self, shard: QuantTensor) -> int:
        wide = 0 if shard.name in TABLES else math.prod(shard.shape) * torch.bfloat16.itemsize
        return super().packed_bytes(shard) + wide
