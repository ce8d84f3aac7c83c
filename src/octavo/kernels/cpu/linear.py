"""Products with weights of 4 to 8 bits: csrc/linear.c says how they are computed, csrc/codes.h how they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.errors import CapacityError
from octavo.kernels.cpu import library
from octavo.kernels.cpu.arena import WEIGHTS

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class AffineMatrix:
    """`w[n, k] = (codes[n, k] - zero) * scale[n, k // group] + minimum[n, k // group]`.

    codes [N, K] uint8 below `2 ** bits` (4, 5, 6 or 8); scale and minimum [N, K / group] float32, minimum may be None;
    group 16 or 32, K a multiple of 32.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    zero: int
    bits: int
    group: int


class PackedAffine:
    """Matrices stacked along N, in the kernels' layout. Scales and minima are rounded to float16."""

    def __init__(self, matrices: Sequence[AffineMatrix]) -> None:
        functions = library.load().functions
        assert functions is not None
        forms = [(kernel_bits(m.bits, m.group, m.minimum is not None), m) for m in matrices]
        self._linear, self._lookup = functions.octavo_linear, functions.octavo_lookup
        self._gated_mlp = functions.octavo_gated_mlp
        self.num_rows = sum(len(matrix.codes) for matrix in matrices)
        self.num_columns = int(matrices[0].codes.shape[1])
        sizes = [
            _aligned(
                functions.octavo_packed_bytes(len(m.codes), self.num_columns, bits, m.group, int(m.minimum is not None))
            )
            for bits, m in forms
        ]
        self.num_bytes = sum(sizes)
        try:
            self._memory = WEIGHTS.take(self.num_bytes)
        except OSError as error:
            raise CapacityError(
                f"no memory is left for {self.num_bytes} bytes of weights; free some or take a smaller model"
            ) from error
        at = self._memory.address
        self._parts = (library.WeightPart * len(matrices))()
        for part, (bits, matrix), size in zip(self._parts, forms, sizes, strict=True):
            codes, scale = matrix.codes.contiguous(), matrix.scale.contiguous()
            minimum = None if matrix.minimum is None else matrix.minimum.contiguous()
            part.data, part.rows, part.bits, part.group = at, len(codes), bits, matrix.group
            part.zero, part.has_minimum, part.unit = matrix.zero, int(minimum is not None), _unit(scale, minimum)
            functions.octavo_pack(
                codes.data_ptr(), scale.data_ptr(), library.pointer(minimum), self.num_columns, ctypes.byref(part)
            )
            at += size
        self._pointer = ctypes.addressof(self._parts)
        self._num_parts = len(self._parts)

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] -> x Wᵀ [T, N] float32."""
        x = x.float().contiguous()  # what a 16-bit route left, e.g.
        assert x.shape[1] == self.num_columns, (x.shape, self.num_columns)
        num_tokens = x.shape[0]
        y = torch.empty(num_tokens, self.num_rows)
        failed = self._linear(
            self._pointer,
            self._num_parts,
            self.num_columns,
            x.data_ptr(),
            self.num_columns,
            num_tokens,
            y.data_ptr(),
            self.num_rows,
        )
        if failed:
            raise CapacityError(f"no memory is left to multiply {num_tokens} rows; shorten the prefill chunk")
        return y

    def gated_mlp(self, x: Tensor, gelu: bool, down: PackedAffine) -> Tensor:
        """x [T, K] -> down(activation(gates) · values) [T, N], where this matrix gives gates before values."""
        x = x.float().contiguous()
        assert x.shape[1] == self.num_columns, (x.shape, self.num_columns)
        assert self.num_rows == 2 * down.num_columns, (self.num_rows, down.num_columns)
        y = torch.empty(x.shape[0], down.num_rows)
        failed = self._gated_mlp(
            x.data_ptr(),
            x.shape[0],
            self.num_columns,
            self._pointer,
            self._num_parts,
            down.num_columns,
            int(gelu),
            down._pointer,
            down._num_parts,
            y.data_ptr(),
        )
        if failed:
            raise CapacityError(f"no memory is left to multiply {x.shape[0]} rows; shorten the prefill chunk")
        return y

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T] int64 of a single matrix -> [T, K] float32."""
        rows = torch.empty(len(ids), self.num_columns)
        self._lookup(self._pointer, self.num_columns, ids.data_ptr(), len(ids), rows.data_ptr())
        return rows


def kernel_bits(bits: int, group: int, has_minimum: bool) -> int:
    """Bits that such codes take packed: their own where there are kernels for that, else 8."""
    functions = library.load().functions
    assert functions is not None
    return bits if functions.octavo_has_form(bits, group, int(has_minimum)) else 8


def packed_bytes(num_rows: int, num_columns: int, bits: int, group: int, has_minimum: bool) -> int:
    """Bytes that such a matrix takes packed: its codes, and one or two float16 numbers a group, in tiles of 16 rows."""
    bits = kernel_bits(bits, group, has_minimum)
    tiles = -(-num_rows // 16)
    return tiles * (16 * num_columns * bits // 8 + 32 * (num_columns // group) * (2 if has_minimum else 1))


def _unit(scale: Tensor, minimum: Tensor | None) -> float:
    """The power of two to divide by so that the largest number is near the top of float16, and few are subnormal."""
    largest = scale.abs().max().item() if scale.numel() else 0.0
    if minimum is not None and minimum.numel():
        largest = max(largest, minimum.abs().max().item())
    if not 0.0 < largest < float("inf"):
        return 1.0
    _, exponent = torch.frexp(torch.tensor(largest))
    return float(2.0 ** max(int(exponent) - 15, -126))  # float32 has the inverse of no smaller one


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
