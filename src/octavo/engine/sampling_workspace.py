"""Scratch memory of the sampler. Fresh buffers of a vocabulary's size cost more in page faults than the arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Named scratch tensors that only grow. What `take` returns is unset and valid until the name is taken again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """A contiguous `[rows, columns]` tensor of `dtype`."""
        size = rows * columns
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=dtype, device=self.device)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(rows, columns)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on its way to the device, without waiting for what the device still does."""
    return values.to(device) if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)
