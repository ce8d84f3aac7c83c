"""Quantised weights on a CPU as the file has them, through kernels of our own: little memory, one kernel for all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine, packed_bytes
from octavo.kernels.cpu.matrices import AffineMatrix, EncodedMatrix, Matrix
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import AffineGroups, MappedTensor, QuantTensor

_KERNEL_GROUPS = (16, 32)


class AffineWeight:
    """Shards may have encodings of their own: each is multiplied in its own form."""

    def __init__(self, packed: PackedAffine) -> None:
        self.packed = packed

    @property
    def num_bytes(self) -> int:
        return self.packed.num_bytes

    def apply(self, x: Tensor) -> Tensor:
        return self.packed.multiply(x)

    def apply_float32(self, x: Tensor) -> Tensor:
        return self.packed.multiply(x)

    def lookup(self, ids: Tensor) -> Tensor:
        return self.packed.lookup(ids)


class AffineRoute:
    """Codes are kept exactly; scales and minima are rounded to 16 bits.

    With codes of 6 and 8 bits that is float16, which most files have them in already, and activations are rounded to 15
    bits per 32 columns. With 4 and 5 bits it is whole steps, of which a row's largest weight in about 512 columns has
    32,600, and activations are rounded to 15 and 14 bits per as many (csrc/fixed.h). Row-invariant at every row count.
    """

    @property
    def properties(self) -> RouteProperties:
        # |scale · (code - zero)| and |minimum| are at most twice the largest weight, each rounded by 2⁻¹¹ at most;
        # or by half a step times a code.
        return RouteProperties("affine", True, 2 * 2 * 2.0**-11)

    @property
    def serves_embedding(self) -> bool:
        return True

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        for shard in shards:
            form = shard.affine_shape()
            if form is None:
                return f"{shard.name} is {shard.format}, which is not an affine encoding"
            if shard.shape[1] % 32:
                return f"{shard.name} has {shard.shape[1]} columns, not a multiple of 32"
            if form.group not in _KERNEL_GROUPS and form.group % 32:
                return f"{shard.name} has groups of {form.group}"
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> AffineWeight:
        packed = PackedAffine([self.matrix(shard) for shard in shards])
        for shard in shards:
            if isinstance(shard, MappedTensor):
                shard.forget()
        return AffineWeight(packed)

    @staticmethod
    def is_packed_from_file(shard: QuantTensor) -> bool:
        """Whether the kernels read the file's own blocks, so that packing takes no other memory."""
        return isinstance(shard, MappedTensor) and EncodedMatrix.can_pack(shard.format)

    @staticmethod
    def matrix(shard: QuantTensor) -> Matrix:
        """A shard that is not refused, as the kernels pack it."""
        form = shard.affine_shape()
        assert form is not None
        if isinstance(shard, MappedTensor) and EncodedMatrix.can_pack(shard.format):
            rows = shard.encoded_rows()
            return EncodedMatrix(
                shard.format, rows.data, rows.order, shard.shape[1], form.bits, form.group, form.has_minimum
            )
        groups = shard.affine_groups()
        assert groups is not None
        return _affine_matrix(groups)

    def packed_bytes(self, shard: QuantTensor) -> int:
        form = shard.affine_shape()
        assert form is not None
        return packed_bytes(shard.shape[0], shard.shape[1], form.bits, min(form.group, 32), form.has_minimum)


def _affine_matrix(groups: AffineGroups) -> AffineMatrix:
    """The kernels know groups of 16 and 32; a wider group is several that share their numbers."""
    repeat = max(1, groups.group // 32)
    scale, minimum = groups.scale, groups.minimum
    if repeat > 1:
        scale = scale.repeat_interleave(repeat, dim=1)
        minimum = None if minimum is None else minimum.repeat_interleave(repeat, dim=1)
    return AffineMatrix(groups.codes, scale, minimum, groups.zero, groups.bits, min(groups.group, 32))
