"""Float32 workspace that one sequence's keys and values are decoded into before they are attended to."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """Grows to the largest span seen, is reused by every row and layer; contents last until the next `span`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = (torch.empty(0, device=device), torch.empty(0, device=device))

    def span(self, num_heads: int, length: int, k_dim: int, v_dim: int) -> tuple[Tensor, Tensor]:
        """Uninitialised k [num_heads, length, k_dim] and v [num_heads, length, v_dim], float32."""
        shapes = ((num_heads, length, k_dim), (num_heads, length, v_dim))
        sizes = tuple(num_heads * length * dim for dim in (k_dim, v_dim))
        if any(buffer.numel() < size for buffer, size in zip(self._buffers, sizes, strict=True)):
            self._buffers = tuple(  # type: ignore[assignment]
                torch.empty(max(buffer.numel(), size), device=self._device)
                for buffer, size in zip(self._buffers, sizes, strict=True)
            )
        k, v = (b[:n].view(s) for b, n, s in zip(self._buffers, sizes, shapes, strict=True))
        return k, v
