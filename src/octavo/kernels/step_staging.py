"""The small values of one step on their way to a device: laid out in pinned memory, and sent in one copy.

Knows bytes and their places; what they mean is the business of whoever puts them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes; what Triton specialises pointers on
_LEAST_BYTES = 1 << 20  # holds a large prompt step: with another buffer, all captured graphs would be worthless
_HOST_BUFFERS = 4  # more than steps are ever under way, so that a buffer's last copy is over when its turn comes
_MOST_VIEWS = 256
_BY_KERNEL = 1 << 16  # bytes up to which a kernel's copy is over before a copy engine's would have begun
_DTYPES: dict[str, torch.dtype] = {"int64": torch.int64, "int32": torch.int32}


class StepStaging:
    """`begin` a step, `put` its values, `send` them. Owned by one thread.

    Values that are put in the same order and of the same sizes lie in the same places on the device, step after step,
    as a captured graph needs it. They are valid from `send` until the next one, in stream order.
    """

    def __init__(self, device: torch.device) -> None:
        self.uploaded_bytes = 0
        self.spilled = False  # whether something of this step lies elsewhere, for want of room
        self._device = device
        self._used = self._needed = self._turn = self._room = 0
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._words = self._buffer.view(torch.int64)
        self._by_kernel = device.type == "cuda" and torch.version.cuda is not None and find_spec("triton") is not None
        self._views: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._hosts: list[_HostBuffer] = []

    def begin(self) -> None:
        """Forget the step before. What it put must have been used by work that is on the stream already."""
        if self._needed > self._room:
            self._grow(self._needed)
        self._used = self._needed = 0
        self.spilled = False
        if self._hosts:
            self._turn = (self._turn + 1) % len(self._hosts)
            self._hosts[self._turn].wait()

    def put(self, values: NDArray[Any]) -> Tensor:
        """`values`, int64 or int32 [N], on the device once they are sent. A view, not a copy of its own."""
        size = values.nbytes
        if not self._hosts:
            self._grow(size)
        start = self._used
        self._needed += -(-size // _ALIGNMENT) * _ALIGNMENT
        if start + size > self._room:
            self.spilled = True
            host = torch.from_numpy(np.ascontiguousarray(values))
            self.uploaded_bytes += size
            if self._device.type == "cuda":
                return host.pin_memory().to(self._device, non_blocking=True)
            return host.clone()
        self._used = start + -(-size // _ALIGNMENT) * _ALIGNMENT
        self._hosts[self._turn].bytes[start : start + size] = np.ascontiguousarray(values).view(np.uint8)
        return self._view(start, size, _DTYPES[values.dtype.name])

    def _view(self, start: int, size: int, dtype: torch.dtype) -> Tensor:
        """Part of the buffer. Most steps ask for the same parts as the one before."""
        found = self._views.get((start, size, dtype))
        if found is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            found = self._views[start, size, dtype] = self._buffer[start : start + size].view(dtype)
        return found

    def send(self) -> None:
        """Have the device take over all that was put since `begin`. Waits for nothing."""
        if self._used:
            host = self._hosts[self._turn]
            if self._by_kernel and self._used <= _BY_KERNEL:
                from octavo.kernels.triton.host_copy import copy_

                words = -(-self._used // 8)
                copy_(self._words[:words], host.words[:words])
            else:
                self._buffer[: self._used].copy_(host.tensor[: self._used], non_blocking=True)
            host.sent(self._device)
            self.uploaded_bytes += self._used

    def _grow(self, num_bytes: int) -> None:
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        for host in self._hosts:
            host.wait()
        self._views.clear()
        self._room = size
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
        self._words = self._buffer.view(torch.int64)
        self._hosts = [_HostBuffer(size, pinned=self._device.type == "cuda") for _ in range(_HOST_BUFFERS)]


class _HostBuffer:
    """Bytes on the host, and the end of the last copy from them."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.tensor = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        self.words = self.tensor.view(torch.int64)
        self.bytes: NDArray[np.uint8] = self.tensor.numpy()
        self._copied: torch.cuda.Event | None = None

    def sent(self, device: torch.device) -> None:
        if device.type == "cuda":
            if self._copied is None:
                self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
