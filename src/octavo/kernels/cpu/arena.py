"""Memory in large pages where the system has them: a model's weights are read whole every step, and with pages of 4 KiB
the processor spends much of that time looking up addresses."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

CHUNK = 16 << 20
_ALIGNMENT = 64


class Memory:
    """`num_bytes` bytes at `address`, a multiple of 64; valid as long as this object lives."""

    def __init__(self, owner: mmap.mmap, offset: int, address: int, num_bytes: int) -> None:
        self._owner = owner
        self._offset = offset
        self.address = address
        self.num_bytes = num_bytes

    def tensor(self) -> Tensor:
        """It as uint8 [num_bytes], which must not be empty. The tensor keeps it alive."""
        return torch.frombuffer(self._owner, dtype=torch.uint8, count=self.num_bytes, offset=self._offset)


class Arena:
    """Hands out pieces of large mappings; a mapping is given back when its last piece dies."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._chunk: mmap.mmap | None = None
        self._start = self._used = self._size = 0

    def take(self, num_bytes: int) -> Memory:
        """Raises `OSError` if no memory is left."""
        size = -(-max(1, num_bytes) // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if self._chunk is None or self._used + size > self._size:
                self._map(max(size, CHUNK))
            assert self._chunk is not None
            memory = Memory(self._chunk, self._used, self._start + self._used, num_bytes)
            self._used += size
            return memory

    def _map(self, size: int) -> None:
        # A private mapping: shared ones, the default here, seldom get large pages.
        private = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        self._chunk = mmap.mmap(-1, size, **private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a system built without large pages has small ones
                self._chunk.madvise(mmap.MADV_HUGEPAGE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._chunk))
        self._used, self._size = 0, size


WEIGHTS = Arena()
