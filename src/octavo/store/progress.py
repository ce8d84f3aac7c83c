"""How long work on model files is shown to a person: on standard error, and as a bar only on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

REFRESH_SECONDS = 0.1


class Progress(Protocol):
    """Where the store reports. Both calls come from the thread that asked for the model."""

    def note(self, line: str) -> None:
        """Report one finished fact, as one line."""

    def bar(self, label: str, total: int, done: Callable[[], int]) -> AbstractContextManager[None]:
        """Show `done()` of `total` bytes while the context is open. `done` is called from another thread."""


class SilentProgress:
    """Reports nothing."""

    def note(self, line: str) -> None:
        pass

    def bar(self, label: str, total: int, done: Callable[[], int]) -> AbstractContextManager[None]:
        return nullcontext()


class TerminalProgress:
    """Lines on standard error; a moving bar too if that is a terminal able to draw one."""

    def note(self, line: str) -> None:
        if sys.stderr is not None:
            print(shown(line), file=sys.stderr, flush=True)

    def bar(self, label: str, total: int, done: Callable[[], int]) -> AbstractContextManager[None]:
        if draws_bars():
            return _rich_bar(label, total, done)
        return nullcontext()


def shown(text: str) -> str:
    """`text` as one line that is safe to print: a terminal would obey control characters of a file name or licence.

    Each of them, and each byte that is no UTF-8, becomes a question mark.
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def draws_bars() -> bool:
    """Whether standard error is a terminal that understands cursor movement."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


@contextmanager
def _rich_bar(label: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    # Rich is imported here so that commands which draw nothing start sooner.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task(shown(label), total=total)

        def draw() -> None:
            progress.update(task, completed=min(done(), total), refresh=True)

        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(REFRESH_SECONDS):
                draw()

        thread = threading.Thread(target=follow, name="octavo-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            draw()
