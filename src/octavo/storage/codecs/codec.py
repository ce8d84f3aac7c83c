"""What a K/V codec is: how it encodes rows, and the memory that holds them. Knows no particular encoding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.kernels.cpu.attention import StoredRows


class RowMemory(Protocol):
    """Hands out memory for planes of rows; `torch.empty` is one. What nobody has written may hold anything."""

    def __call__(
        self, num_rows: int, num_heads: int, width: int, /, *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """[num_rows, num_heads, width]. Rows may lie apart."""
        ...


class RowStore(Protocol):
    """Encoded rows `[num_rows, num_heads, dim]` of one layer's K or V."""

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Encode values [T, H, D] into rows [T] int64."""
        ...

    def write_run(self, start: int, values: Tensor) -> None:
        """Encode values [T, H, D] into rows `[start, start + T)`."""
        ...

    def read(self, start: int, stop: int, out: Tensor) -> None:
        """Decode rows `[start, stop)` into out [H, stop - start, D] float32."""
        ...

    def read_blocks(self, block_ids: Tensor, block_size: int, out: Tensor) -> None:
        """Decode the rows of whole blocks, in the order given, into out [H, S, D] float32.

        S is at most `len(block_ids) * block_size`; what lies beyond S in the last block is not read.
        """
        ...

    def read_rows(self, rows: Tensor, out: Tensor) -> None:
        """Decode rows [S] int64, in the order given, into out [H, S, D] float32."""
        ...

    def planes(self) -> dict[str, Tensor]:
        """The encoded rows by name, each [num_rows, num_heads, width]: row r of every plane is all of row r."""
        ...

    def for_kernels(self) -> StoredRows | None:
        """The rows as the compiled attention reads and writes them; None where it cannot."""
        ...


class Codec(Protocol):
    """One encoding. Stateless. What a head of a token becomes depends on that head of that token alone.

    A value that is not finite, or too large for the encoding, comes back as one that is not finite.
    """

    @property
    def name(self) -> str: ...

    def refusal(self, dim: int) -> str | None:
        """Why heads of `dim` elements cannot be encoded; None if they can."""
        ...

    def bytes_per_row(self, dim: int) -> int:
        """Bytes that one head of one token takes: exactly what `allocate` takes for it."""
        ...

    def allocate(
        self, num_rows: int, num_heads: int, dim: int, device: torch.device, memory: RowMemory = torch.empty
    ) -> RowStore:
        """Rows whose planes lie in `memory`, which is asked for them in the same order every time."""
        ...

    def round_trip(self, values: Tensor) -> Tensor:
        """values [T, H, D] as float32 after encoding and decoding: what `read` would return for them."""
        ...
