"""4-bit affine weights on a CPU, as the file has them: a quarter of bfloat16's memory, slower in a long prefill."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import AffineGroups, QuantTensor

_GROUPS = (32, 64, 128, 256)


class Int4Weight:
    def __init__(self, packed: Tensor, scale_and_zero: Tensor, group: int) -> None:
        self._packed = packed
        self._scale_and_zero = scale_and_zero
        self._group = group

    @property
    def num_bytes(self) -> int:
        return self._packed.numel() * self._packed.itemsize + self._scale_and_zero.numel() * 2

    def apply(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self._packed, self._group, self._scale_and_zero
        )
        return y

    def apply_float32(self, x: Tensor) -> Tensor:
        return self.apply(x).float()


class Int4Route:
    """Codes are kept exactly; scales and offsets are rounded to bfloat16. Row-invariant at every row count."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    @property
    def properties(self) -> RouteProperties:
        # Scale and offset are both rounded, and |scale · code| and |offset| are at most twice the largest weight.
        return RouteProperties("int4", True, 2 * torch.finfo(torch.bfloat16).eps)

    @property
    def serves_embedding(self) -> bool:
        return False

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        for shard in shards:
            form = shard.affine_shape()
            if form is None or form.bits != 4:
                return f"{shard.name} is {shard.format}, which is not a 4-bit affine encoding"
            first = shards[0].affine_shape()
            if form.group not in _GROUPS or first is None or form.group != first.group:
                return f"{shard.name} has groups of {form.group}"
            if shard.shape[0] % 16:
                return f"{shard.name} has {shard.shape[0]} rows, not a multiple of 16"
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> Int4Weight:
        parts = [groups for groups in (shard.affine_groups() for shard in shards) if groups is not None]
        codes = torch.cat([part.codes for part in parts])
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
        scale = torch.cat([part.scale for part in parts])
        # The kernel computes (code - 8) · scale + zero.
        zero = torch.cat([_zero(part) for part in parts])
        pair = torch.stack((scale.t(), zero.t()), dim=-1).to(torch.bfloat16).contiguous()  # [K / group, N, 2]
        return Int4Weight(packed, pair, parts[0].group)

    def packed_bytes(self, shard: QuantTensor) -> int:
        form = shard.affine_shape()
        assert form is not None
        return shard.shape[0] * (shard.shape[1] // 2 + 4 * (shard.shape[1] // form.group))


def _zero(part: AffineGroups) -> Tensor:
    zero = (8 - part.zero) * part.scale
    return zero if part.minimum is None else zero + part.minimum
