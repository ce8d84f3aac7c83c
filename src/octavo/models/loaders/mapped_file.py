"""Opening a file as a read-only memory map. Owns the errors of missing, empty and unreadable files."""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError

Bytes = NDArray[np.uint8]


def map_file(path: Path) -> Bytes:
    """The file as a read-only `[size]` uint8 array backed by the page cache; nothing is read yet.

    The map lives as long as the array or any view of it. Raises `LoadError` for a file that cannot be mapped.
    """
    try:
        size = path.stat().st_size
        if size == 0:
            raise LoadError(f"{path}: the file is empty (0 bytes); download it again")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise LoadError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise LoadError(f"{path}: is a directory, not a file; check the path") from None
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror or error}); check permissions") from error


def forget(view: Bytes) -> None:
    """Let the process's memory for the part of a file that `view` spans go; it is mapped again when it is read.

    What does not come from `map_file` is left alone.
    """
    root = view
    while isinstance(root.base, np.ndarray):
        root = root.base
    mapping = root.base
    if not isinstance(mapping, mmap.mmap) or not view.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = view.ctypes.data - root.ctypes.data
    last = first + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)) + 1
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # a system that will not: the memory stays
        mapping.madvise(mmap.MADV_DONTNEED, start, last - start)
