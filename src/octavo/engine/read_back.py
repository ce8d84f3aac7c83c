"""Token ids on their way from a device to the host, without having the host wait for what was launched after them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BUFFERS = 4  # more than steps are ever under way


@dataclass(frozen=True, slots=True)
class HostTokens:
    """The first `count` ids in `buffer`, once `copied` has happened. To be read before three more were started."""

    buffer: Tensor
    count: int
    copied: torch.cuda.Event

    def wait(self) -> list[int]:
        self.copied.synchronize()
        ids: list[int] = self.buffer[: self.count].tolist()
        return ids


class ReadBack:
    """Copies into pinned buffers that take turns."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._events: list[torch.cuda.Event] = []
        self._turn = 0

    def start(self, token_ids: Tensor) -> HostTokens:
        """Copy `token_ids` int64 [R] of a CUDA device, in stream order."""
        count = len(token_ids)
        if not self._buffers or count > len(self._buffers[0]):
            size = 1 << max(6, (count - 1).bit_length())
            self._buffers = [torch.zeros(size, dtype=torch.int64, pin_memory=True) for _ in range(_BUFFERS)]
            self._events = [torch.cuda.Event() for _ in range(_BUFFERS)]
        self._turn = (self._turn + 1) % _BUFFERS
        buffer, event = self._buffers[self._turn], self._events[self._turn]
        buffer[:count].copy_(token_ids, non_blocking=True)
        event.record()
        return HostTokens(buffer, count, event)
