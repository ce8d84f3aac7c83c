"""Matrices on their way into the kernels' layout: as codes with their numbers, or as the encoded blocks of a file."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.cpu import library

# As csrc/blocks.h numbers them.
_ENCODINGS = {"Q4_0": 0, "Q4_1": 1, "Q5_0": 2, "Q5_1": 3, "Q8_0": 4, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7}


class Matrix(Protocol):
    """A matrix [N, K] that can be packed, K a multiple of 32; `group` is 16 or 32, `bits` 4, 5, 6 or 8 per code."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_columns(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def has_minimum(self) -> bool: ...

    def pack_into(self, part: library.WeightPart) -> None:
        """Write the rows to `part.data`, in `part.bits` per code, and set what else `part` says of them."""
        ...


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

    @property
    def num_rows(self) -> int:
        return len(self.codes)

    @property
    def num_columns(self) -> int:
        return int(self.codes.shape[1])

    @property
    def has_minimum(self) -> bool:
        return self.minimum is not None

    def pack_into(self, part: library.WeightPart) -> None:
        """See `Matrix`."""
        codes, scale = self.codes.contiguous(), self.scale.contiguous()
        minimum = None if self.minimum is None else self.minimum.contiguous()
        part.rows, part.group, part.zero = self.num_rows, self.group, self.zero
        part.has_minimum, part.unit = int(self.has_minimum), _unit(scale, minimum)
        functions = library.load().functions
        assert functions is not None
        functions.octavo_pack(
            codes.data_ptr(), scale.data_ptr(), library.pointer(minimum), self.num_columns, ctypes.byref(part)
        )


@dataclass(frozen=True, slots=True)
class EncodedMatrix:
    """Rows of blocks in one of GGUF's affine encodings (see `can_pack`), straight from a file.

    data [stored rows, row bytes] uint8, a row's bytes one after another; row n is data[order[n]], order int64 and
    contiguous, or data[n] where there is none.
    """

    encoding: str
    data: NDArray[np.uint8]
    order: NDArray[np.int64] | None
    num_columns: int
    bits: int
    group: int
    has_minimum: bool

    @staticmethod
    def can_pack(encoding: str) -> bool:
        """Whether there is code for these blocks."""
        return encoding in _ENCODINGS

    @property
    def num_rows(self) -> int:
        return len(self.data) if self.order is None else len(self.order)

    def pack_into(self, part: library.WeightPart) -> None:
        """See `Matrix`."""
        assert self.data.strides[1] == 1
        bits, part.rows = part.bits, self.num_rows
        functions = library.load().functions
        assert functions is not None
        failed = functions.octavo_pack_blocks(
            self.data.ctypes.data,
            self.data.strides[0],
            None if self.order is None else self.order.ctypes.data,
            self.num_columns,
            _ENCODINGS[self.encoding],
            ctypes.byref(part),
        )
        assert not failed, self.encoding
        assert (part.bits, part.group, bool(part.has_minimum)) == (bits, self.group, self.has_minimum), self.encoding


def _unit(scale: Tensor, minimum: Tensor | None) -> float:
    """The power of two to divide by so that the largest number is near the top of float16, and few are subnormal."""
    largest = scale.abs().max().item() if scale.numel() else 0.0
    if minimum is not None and minimum.numel():
        largest = max(largest, minimum.abs().max().item())
    if not 0.0 < largest < float("inf"):
        return 1.0
    _, exponent = torch.frexp(torch.tensor(largest))
    return float(2.0 ** max(int(exponent) - 15, -126))  # float32 has the inverse of no smaller one
