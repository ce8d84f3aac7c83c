"""How K and V are encoded in storage. Every row that attention reads has been through its codec."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.kernels.cpu.attention import StoredRows


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

    def planes(self) -> dict[str, Tensor]:
        """The encoded rows by name, each [num_rows, num_heads, width]: row r of every plane is all of row r."""
        ...

    def for_kernels(self) -> StoredRows | None:
        """The rows as the compiled attention reads and writes them; None where it cannot."""
        ...


class Codec(Protocol):
    """One encoding. Stateless; groups never span tokens."""

    @property
    def name(self) -> str: ...

    def bytes_per_row(self, dim: int) -> int:
        """Bytes that one head of one token takes."""
        ...

    def allocate(self, num_rows: int, num_heads: int, dim: int, device: torch.device) -> RowStore: ...

    def round_trip(self, values: Tensor) -> Tensor:
        """values [T, H, D] as float32 after encoding and decoding: what `read` would return for them."""
        ...


class CastRows:
    """Rows kept in a floating dtype."""

    def __init__(self, num_rows: int, num_heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        # Unwritten rows are never read, so the memory stays untouched (and on most systems uncommitted).
        self.data = torch.empty(num_rows, num_heads, dim, dtype=dtype, device=device)

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

    def planes(self) -> dict[str, Tensor]:
        return {"values": self.data}

    def for_kernels(self) -> StoredRows | None:
        return StoredRows(self.data) if self.data.device.type == "cpu" else None


class CastCodec:
    """`f32`, `f16`, `bf16`: a plain cast."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self._name = name
        self._dtype = dtype

    @property
    def name(self) -> str:
        return self._name

    def bytes_per_row(self, dim: int) -> int:
        return dim * self._dtype.itemsize

    def allocate(self, num_rows: int, num_heads: int, dim: int, device: torch.device) -> CastRows:
        return CastRows(num_rows, num_heads, dim, self._dtype, device)

    def round_trip(self, values: Tensor) -> Tensor:
        return values.to(self._dtype).float()


CODECS: dict[str, Codec] = {
    "f32": CastCodec("f32", torch.float32),
    "f16": CastCodec("f16", torch.float16),
    "bf16": CastCodec("bf16", torch.bfloat16),
}


def resolve_kv_dtype(choice: str, compute_dtype: torch.dtype) -> tuple[Codec, Codec]:
    """The (K, V) codecs for `auto`, one name for both, or `k=NAME,v=NAME`.

    `auto` is f32 for float32 compute, else f16. Raises `InvalidRequest` naming what can be chosen.
    """
    auto = "f32" if compute_dtype == torch.float32 else "f16"
    names = {"k": auto, "v": auto}
    if "=" in choice:
        for part in choice.split(","):
            key, _, name = part.partition("=")
            if key.strip() not in names:
                raise InvalidRequest(f"kv dtype has {part!r}; write one name for both, or k=NAME,v=NAME")
            names[key.strip()] = auto if name.strip() == "auto" else name.strip()
    elif choice != "auto":
        names = {"k": choice, "v": choice}
    for key, name in names.items():
        if name not in CODECS:
            raise InvalidRequest(f"kv dtype {name!r} for {key} is unknown; choose one of auto, {', '.join(CODECS)}")
    return CODECS[names["k"]], CODECS[names["v"]]
