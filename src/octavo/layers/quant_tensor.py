"""A weight as its file stores it, until a linear route packs it. Loaders implement this; routes consume it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AffineGroups:
    """An affine weight, exactly: `w[n, k] = (codes[n, k] - zero) * scale[n, k // group] + minimum[n, k // group]`.

    codes [N, K] uint8, below 2 ** `bits` (4, 5, 6 or 8); scale and minimum [N, K / group] float32, minimum None where
    the encoding has none; `group` is 16, 32 or a multiple of 32.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    zero: int
    bits: int
    group: int


@dataclass(frozen=True, slots=True)
class AffineShape:
    """The form of an affine encoding: bits per code (4, 5, 6 or 8), columns per scale, and whether there are minima."""

    bits: int
    group: int
    has_minimum: bool


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """The rows of a matrix as they lie in a file: data [stored rows, row bytes] uint8, a row's bytes one after another.

    Row n of the matrix is data[order[n]], or data[n] where `order` [N] int64 is None.
    """

    data: NDArray[np.uint8]
    order: NDArray[np.int64] | None


class QuantTensor(Protocol):
    """One tensor of a checkpoint, with its Hugging Face orientation `[out, in]` (vectors: `[n]`) and values.

    Reading is lazy: nothing is read from the file before `dequantize` or `affine_groups`; slices share the file.
    """

    @property
    def name(self) -> str:
        """Canonical Hugging Face parameter name, e.g. `model.layers.0.self_attn.q_proj.weight`."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str:
        """The file's own name for the encoding: `F32`, `BF16`, `Q4_K`, `mlx-4bit-g64`, …"""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in the file."""
        ...

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, a fresh contiguous CPU tensor of `shape`. Computed in float32, rounded once to `dtype`."""
        ...

    def rows(self, start: int, stop: int) -> QuantTensor:
        """Rows `[start, stop)` of the first dimension."""
        ...

    def columns(self, start: int, stop: int) -> QuantTensor:
        """Columns `[start, stop)` of a matrix. Raises `LoadError` if that cuts a quantisation group."""
        ...

    def affine_groups(self) -> AffineGroups | None:
        """The affine form, where the encoding is one (Q4_0 to Q8_0, Q4_K to Q6_K, MLX); None otherwise."""
        ...

    def affine_shape(self) -> AffineShape | None:
        """What `affine_groups` would hold, without reading anything."""
        ...


@runtime_checkable
class MappedTensor(QuantTensor, Protocol):
    """A tensor whose rows are encoded blocks in a mapped file."""

    def encoded_rows(self) -> EncodedRows:
        """The rows of a matrix, not copied; only what is looked at is read."""
        ...

    def forget(self) -> None:
        """Give the memory that the file's part takes in this process back; it is read again when it is needed."""
        ...


@runtime_checkable
class ComputedTensor(QuantTensor, Protocol):
    """A tensor that is in no file, so that its values need not come over the host."""

    def values_on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """What `dequantize` gives, to the bit, computed on `device`."""
        ...
