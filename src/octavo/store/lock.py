"""A lock between processes, held through an open file. Says nothing about what it protects."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.2


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Exclusive between processes and threads; the system releases it when its holder ends, however it ends.

    `on_wait` is called once if another holds the lock; it may raise to give up instead of waiting.
    The file stays behind: removing it would let two later holders lock two different files.
    """
    with path.open("ab") as file:
        if not _try_lock(file):
            on_wait()
            while not _try_lock(file):
                time.sleep(POLL_SECONDS)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:  # how Windows says that another holds it
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
