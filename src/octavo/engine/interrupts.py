"""Keeps Ctrl-C and termination out of bookkeeping: they take effect where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_Handler = Callable[[int, FrameType | None], object]
_HELD = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """A context in which SIGINT and SIGTERM wait; when it ends they reach the handlers that were there before.

    `let_through` opens a window in which they do so at once. Other threads than the main one, which receive no
    signals, and signals without a Python handler are left alone.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._pending: list[int] = []

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            for signum in _HELD:
                handler = signal.getsignal(signum)
                if callable(handler):
                    self._handlers[signum] = handler
            self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """For long work that may be broken off anywhere."""
        self._release()
        try:
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        for signum in self._handlers:
            signal.signal(signum, self._note)

    def _release(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        pending, self._pending = self._pending, []
        for signum in pending:
            self._handlers[signum](signum, None)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._pending.append(signum)
