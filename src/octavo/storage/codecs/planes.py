"""Rows kept as several planes, codes and what scales them. Knows how they are stored, not what they mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.kernels.cpu.attention import StoredRows
from octavo.storage.codecs.codec import RowMemory

HEAD_MULTIPLE = 16


class PlaneCodec(ABC):
    """An encoding of heads whose size is a multiple of 16 into planes.

    Only elementwise operations, minima and maxima are used, whose bits depend neither on the number of rows nor on
    the device; the compiled kernels repeat them in the same order (kernels/cpu/csrc/codecs.h).
    """

    name: str

    def refusal(self, dim: int) -> str | None:
        return None if dim % HEAD_MULTIPLE == 0 else f"heads have {dim} elements, not a multiple of {HEAD_MULTIPLE}"

    @abstractmethod
    def widths(self, dim: int) -> dict[str, tuple[int, torch.dtype]]:
        """Elements and dtype of each plane, for one head."""

    @abstractmethod
    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """values [T, H, D] -> the planes' rows, each [T, H, width]."""

    @abstractmethod
    def decode(self, planes: Mapping[str, Tensor], dim: int) -> Tensor:
        """The planes' rows, each [T, H, width] -> [T, H, D] float32."""

    @abstractmethod
    def stored(self, planes: Mapping[str, Tensor], dim: int) -> StoredRows:
        """The planes (on a CPU) as the compiled kernels see them."""

    def bytes_per_row(self, dim: int) -> int:
        return sum(width * dtype.itemsize for width, dtype in self.widths(dim).values())

    def allocate(
        self, num_rows: int, num_heads: int, dim: int, device: torch.device, memory: RowMemory = torch.empty
    ) -> PlaneRows:
        assert self.refusal(dim) is None, self.refusal(dim)
        planes = {
            name: memory(num_rows, num_heads, width, dtype=dtype, device=device)
            for name, (width, dtype) in self.widths(dim).items()
        }
        return PlaneRows(self, dim, planes, device)

    def round_trip(self, values: Tensor) -> Tensor:
        return self.decode(self.encode(values), values.shape[-1])


class PlaneRows:
    """Rows [num_rows, num_heads, dim] as the planes of a codec."""

    def __init__(self, codec: PlaneCodec, dim: int, planes: Mapping[str, Tensor], device: torch.device) -> None:
        """planes [num_rows, num_heads, width] by the codec's names."""
        self._codec = codec
        self._dim = dim
        self._device = device
        self._planes = dict(planes)

    def write(self, rows: Tensor, values: Tensor) -> None:
        for name, encoded in self._codec.encode(values).items():
            self._planes[name].index_copy_(0, rows, encoded)

    def write_run(self, start: int, values: Tensor) -> None:
        for name, encoded in self._codec.encode(values).items():
            self._planes[name][start : start + values.shape[0]].copy_(encoded)

    def read(self, start: int, stop: int, out: Tensor) -> None:
        self._decode({name: plane[start:stop] for name, plane in self._planes.items()}, out)

    def read_blocks(self, block_ids: Tensor, block_size: int, out: Tensor) -> None:
        rows = {}
        for name, plane in self._planes.items():
            _, num_heads, width = plane.shape
            blocks = plane.view(-1, block_size, num_heads, width).index_select(0, block_ids)
            rows[name] = blocks.view(-1, num_heads, width)[: out.shape[1]]
        self._decode(rows, out)

    def read_rows(self, rows: Tensor, out: Tensor) -> None:
        self._decode({name: plane.index_select(0, rows) for name, plane in self._planes.items()}, out)

    def _decode(self, rows: Mapping[str, Tensor], out: Tensor) -> None:
        out.copy_(self._codec.decode(rows, self._dim).transpose(0, 1))

    def planes(self) -> dict[str, Tensor]:
        return dict(self._planes)

    def for_kernels(self) -> StoredRows | None:
        return self._codec.stored(self._planes, self._dim) if self._device.type == "cpu" else None


def pack_nibbles(codes: Tensor) -> Tensor:
    """codes [..., D] from 0 to 15 -> [..., D / 2] uint8: element d below element d + D / 2."""
    low, high = codes.to(torch.uint8).chunk(2, dim=-1)
    return low | high << 4


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The inverse of `pack_nibbles`, uint8."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def finite_half(x: Tensor) -> Tensor:
    """x as float16, NaN wherever that is not finite: codes scaled by it come back as NaN."""
    half = x.half()
    return half.masked_fill(~half.isfinite(), float("nan"))
