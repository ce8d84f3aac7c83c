"""Threads with a deep stack: the library's recursion ends a process whose stack does not hold it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.grammar.limits import STACK_BYTES

_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Threads that are started inside have a stack of `STACK_BYTES`."""
    with _ONE_AT_A_TIME:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)
