"""`f32`, `f16`, `bf16`: K/V rows kept in a floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.cpu.attention import StoredRows
from octavo.storage.codecs.codec import RowMemory


class CastRows:
    """Rows kept in a floating dtype."""

    def __init__(self, data: Tensor) -> None:
        """data [num_rows, num_heads, dim]. Unwritten rows are never read, so on most systems they take no memory."""
        self.data = data

    def write(self, rows: Tensor, values: Tensor) -> None:
        self.data.index_copy_(0, rows, values.to(self.data.dtype))

    def write_run(self, start: int, values: Tensor) -> None:
        self.data[start : start + values.shape[0]].copy_(values)

    def read(self, start: int, stop: int, out: Tensor) -> None:
        out.copy_(self.data[start:stop].transpose(0, 1))

    def read_blocks(self, block_ids: Tensor, block_size: int, out: Tensor) -> None:
        _, num_heads, dim = self.data.shape
        blocks = self.data.view(-1, block_size, num_heads, dim).index_select(0, block_ids)
        out.copy_(blocks.view(-1, num_heads, dim)[: out.shape[1]].transpose(0, 1))

    def read_rows(self, rows: Tensor, out: Tensor) -> None:
        out.copy_(self.data.index_select(0, rows).transpose(0, 1))

    def planes(self) -> dict[str, Tensor]:
        return {"values": self.data}

    def for_kernels(self) -> StoredRows | None:
        return StoredRows(self.data) if self.data.device.type == "cpu" else None


class CastCodec:
    """A plain cast, for heads of any size.

    Relative error of normal data (‖decoded - x‖ / ‖x‖): f32 none, f16 1.9e-4 to 2.2e-4, bf16 15e-4 to 18e-4.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self._name = name
        self._dtype = dtype

    @property
    def name(self) -> str:
        return self._name

    def refusal(self, dim: int) -> str | None:
        del dim
        return None

    def bytes_per_row(self, dim: int) -> int:
        return dim * self._dtype.itemsize

    def allocate(
        self, num_rows: int, num_heads: int, dim: int, device: torch.device, memory: RowMemory = torch.empty
    ) -> CastRows:
        return CastRows(memory(num_rows, num_heads, dim, dtype=self._dtype, device=device))

    def round_trip(self, values: Tensor) -> Tensor:
        return values.to(self._dtype).float()
