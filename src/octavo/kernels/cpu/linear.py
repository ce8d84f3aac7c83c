"""Products with weights of 4 to 8 bits: csrc/linear.c says how they are computed, csrc/codes.h how they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.errors import CapacityError
from octavo.kernels.cpu import library, rowwise
from octavo.kernels.cpu.arena import WEIGHTS
from octavo.kernels.cpu.matrices import Matrix

_ALIGNMENT = 64
_MOST_GREEDY_ROWS = 64  # as csrc/best_rows.h says


class PackedAffine:
    """Matrices stacked along N, in the kernels' layout. Scales and minima are rounded to 16 bits (csrc/fixed.h)."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        functions = library.load().functions
        assert functions is not None
        self._linear, self._lookup = functions.octavo_linear, functions.octavo_lookup
        self._greedy = functions.octavo_linear_greedy
        self._gated, self._gated_mlp = functions.octavo_gated_linear, functions.octavo_gated_mlp
        self.num_rows = sum(matrix.num_rows for matrix in matrices)
        self.num_columns = matrices[0].num_columns
        self._whole_tiles = self.num_rows % 32 == 0 and all(matrix.num_rows % 16 == 0 for matrix in matrices)
        bits = [kernel_bits(m.bits, m.group, m.has_minimum) for m in matrices]
        sizes = [_aligned(packed_bytes(m.num_rows, m.num_columns, m.bits, m.group, m.has_minimum)) for m in matrices]
        self.num_bytes = sum(sizes)
        try:
            self._memory = WEIGHTS.take(self.num_bytes)
        except OSError as error:
            raise CapacityError(
                f"no memory is left for {self.num_bytes} bytes of weights; free some or take a smaller model"
            ) from error
        at = self._memory.address
        self._parts = (library.WeightPart * len(matrices))()
        for part, each, matrix, size in zip(self._parts, bits, matrices, sizes, strict=True):
            part.data, part.bits = at, each
            matrix.pack_into(part)
            at += size
        self.pointer = ctypes.addressof(self._parts)
        self.num_parts = len(self._parts)

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] -> x Wᵀ [T, N] float32."""
        x = x.float().contiguous()  # what a 16-bit route left, e.g.
        assert x.shape[1] == self.num_columns, (x.shape, self.num_columns)
        num_tokens = x.shape[0]
        y = torch.empty(num_tokens, self.num_rows)
        failed = self._linear(
            self.pointer,
            self.num_parts,
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

    def greedy(self, x: Tensor) -> Tensor | None:
        """x [T, K] -> [T] int64: the first place of the largest of each row of `multiply`, which is not written, or -1
        where that is not finite. None for more rows than are served.
        """
        if not 0 < len(x) <= _MOST_GREEDY_ROWS:
            return None
        x = x.float().contiguous()
        assert x.shape[1] == self.num_columns, (x.shape, self.num_columns)
        places = torch.empty(len(x), dtype=torch.int64)
        failed = self._greedy(
            self.pointer,
            self.num_parts,
            self.num_columns,
            x.data_ptr(),
            self.num_columns,
            len(x),
            places.data_ptr(),
        )
        if failed:
            raise CapacityError(f"no memory is left to multiply {len(x)} rows; lower --max-num-seqs or --max-context")
        return places

    def gated(self, x: Tensor, gelu: bool) -> Tensor:
        """x [T, K] -> activation(gates) · values [T, N / 2], where this matrix gives gates before values."""
        x = x.float().contiguous()
        assert x.shape[1] == self.num_columns, (x.shape, self.num_columns)
        num_tokens, width = x.shape[0], self.num_rows // 2
        if not self._whole_tiles:  # the kernel would keep memory for all of the product
            return rowwise.gate(self.multiply(x), gelu)
        y = torch.empty(num_tokens, width)
        failed = self._gated(
            self.pointer,
            self.num_parts,
            self.num_columns,
            x.data_ptr(),
            num_tokens,
            width,
            int(gelu),
            y.data_ptr(),
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
            self.pointer,
            self.num_parts,
            down.num_columns,
            int(gelu),
            down.pointer,
            down.num_parts,
            y.data_ptr(),
        )
        if failed:
            raise CapacityError(f"no memory is left to multiply {x.shape[0]} rows; shorten the prefill chunk")
        return y

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T] int64 of a single matrix -> [T, K] float32."""
        rows = torch.empty(len(ids), self.num_columns)
        self._lookup(self.pointer, self.num_columns, ids.data_ptr(), len(ids), rows.data_ptr())
        return rows


def kernel_bits(bits: int, group: int, has_minimum: bool) -> int:
    """Bits that such codes take packed: their own where there are kernels for that, else 8."""
    functions = library.load().functions
    assert functions is not None
    return bits if functions.octavo_has_form(bits, group, int(has_minimum)) else 8


def packed_bytes(num_rows: int, num_columns: int, bits: int, group: int, has_minimum: bool) -> int:
    """Bytes that such a matrix takes packed."""
    functions = library.load().functions
    assert functions is not None
    bits = kernel_bits(bits, group, has_minimum)
    return int(functions.octavo_packed_bytes(num_rows, num_columns, bits, group, int(has_minimum)))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
