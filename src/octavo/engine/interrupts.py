"""Keeps Ctrl-C out of bookkeeping: it takes effect where nothing is half done. Owns no other signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_Handler = Callable[[int, FrameType | None], object]


class HeldInterrupts:
    """A context in which SIGINT waits; it reaches the handler that was there before when the context ends.

    `let_through` opens a window in which it does so at once. Other threads than the main one, which receive no
    signals, and processes that ignore SIGINT are left alone.
    """

    def __init__(self) -> None:
        self._handler: _Handler | None = None
        self._pending = False

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
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
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._note)

    def _release(self) -> None:
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        if self._pending:
            self._pending = False
            self._handler(signal.SIGINT, None)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._pending = True
