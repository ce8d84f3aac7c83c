"""A tensor whose rows are encoded blocks in a mapped file: every GGUF tensor, every safetensors float tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.errors import LoadError
from octavo.layers.quant_tensor import AffineGroups, AffineShape, EncodedRows
from octavo.models.loaders.dequantize import affine_blocks, affine_shape, decode_blocks
from octavo.models.loaders.encodings import Encoding
from octavo.models.loaders.mapped_file import Bytes, forget

# Values decoded at a time: the float32 workspace of a chunk stays in a core's second-level cache.
CHUNK_VALUES = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTensor:
    """Implements `QuantTensor`. `data` is [rows, row_bytes] in the file; a vector is a column of one-value rows.

    `order` [rows] gives, for each row of the tensor, its row in `data`; None where they are the same.
    `shift` is added to every value (Gemma's norm weights are stored with one added).
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: Bytes
    order: NDArray[np.int64] | None = None
    shift: float = 0.0

    @classmethod
    def from_bytes(cls, name: str, shape: tuple[int, ...], encoding: Encoding, data: Bytes) -> EncodedTensor:
        """`data` is exactly the tensor's bytes, flat; the caller has checked its length."""
        row_length = shape[-1] if len(shape) > 1 else encoding.block_size
        return cls(name, shape, encoding, data.reshape(-1, encoding.row_bytes(row_length)))

    @property
    def format(self) -> str:
        return self.encoding.name

    @property
    def num_bytes(self) -> int:
        return self._num_rows * self._row_bytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, a fresh contiguous CPU tensor of `shape`. Computed in float32, rounded once to `dtype`."""
        out = torch.empty(self.shape, dtype=dtype)
        if out.numel() == 0:
            return out
        rows = out.view(-1, self._row_length)
        for start, blocks in self._chunks():
            values = decode_blocks(self.encoding, blocks)
            if self.shift:
                values = values + self.shift
            values = values.view(-1, self._row_length)
            rows[start : start + len(values)] = values
        return out

    def rows(self, start: int, stop: int) -> EncodedTensor:
        """Rows `[start, stop)` of the first dimension."""
        assert 0 <= start <= stop <= self.shape[0], (self.name, start, stop, self.shape)
        if len(self.shape) == 1:
            assert self.encoding.is_float
        shape = (stop - start, *self.shape[1:])
        per_row = len(self.data) // self.shape[0]  # 1, but for tensors of more than two dimensions
        if self.order is not None:
            return replace(self, shape=shape, order=self.order[start:stop])
        return replace(self, shape=shape, data=self.data[start * per_row : stop * per_row])

    def columns(self, start: int, stop: int) -> EncodedTensor:
        """Columns `[start, stop)` of a matrix. Raises `LoadError` if that cuts a quantisation block."""
        assert len(self.shape) == 2, (self.name, self.shape)
        assert 0 <= start <= stop <= self.shape[1], (self.name, start, stop, self.shape)
        size = self.encoding.block_size
        if start % size or stop % size:
            raise LoadError(
                f"{self.name}: columns {start} to {stop} cut a block of {size} values ({self.format}); "
                f"split it at multiples of {size}"
            )
        first, last = self.encoding.row_bytes(start), self.encoding.row_bytes(stop)
        return replace(self, shape=(self.shape[0], stop - start), data=self.data[:, first:last])

    def affine_shape(self) -> AffineShape | None:
        """What `affine_groups` would hold, without reading anything."""
        return None if len(self.shape) != 2 or self.shift else affine_shape(self.encoding)

    def affine_groups(self) -> AffineGroups | None:
        """The affine form of a matrix whose encoding is one; None for other encodings."""
        shape = self.affine_shape()
        if shape is None:
            return None
        num_rows, row_length = self.shape
        per_row = row_length // shape.group
        codes = torch.empty(num_rows, row_length, dtype=torch.uint8)
        scale = torch.empty(num_rows, per_row)
        minimum = torch.empty(num_rows, per_row) if shape.has_minimum else None
        zero = 0
        for start, blocks in self._chunks():
            part = affine_blocks(self.encoding, blocks)
            assert part is not None
            stop, zero = start + part.codes.numel() // row_length, part.zero
            codes[start:stop] = part.codes.view(-1, row_length)
            scale[start:stop] = part.scale.view(-1, per_row)
            if minimum is not None and part.minimum is not None:
                minimum[start:stop] = part.minimum.view(-1, per_row)
        return AffineGroups(codes, scale, minimum, zero, shape.bits, shape.group)

    def encoded_rows(self) -> EncodedRows:
        """The rows of a matrix, not copied."""
        return EncodedRows(self.data, self.order)

    def forget(self) -> None:
        """Give the memory that the file's part takes in this process back; it is read again when it is needed."""
        forget(self.data)

    @property
    def _num_rows(self) -> int:
        return len(self.data) if self.order is None else len(self.order)

    @property
    def _row_bytes(self) -> int:
        return int(self.data.shape[1])

    @property
    def _row_length(self) -> int:
        return self._row_bytes // self.encoding.block_bytes * self.encoding.block_size

    def _chunks(self) -> Iterator[tuple[int, Tensor]]:
        """Runs of whole rows, copied from the file: (first row, blocks [num_blocks, block_bytes] uint8)."""
        step = max(1, CHUNK_VALUES // max(1, self._row_length))
        for start in range(0, self._num_rows, step):
            stop = min(start + step, self._num_rows)
            chosen = slice(start, stop) if self.order is None else self.order[start:stop]
            # An own copy: the map is read-only, may be misaligned, and may have strided rows.
            blocks = np.array(self.data[chosen], order="C", copy=True)
            yield start, torch.from_numpy(blocks).view(-1, self.encoding.block_bytes)
        self.forget()
