"""Standard output and error of the process: which must be written, which may be lost. Decides no exit status."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


class OutputError(OSError):
    """Standard output cannot be written: what the user asked for is lost. `strerror` says why."""


class Output(TextIOWrapper):
    """Standard output. A failed write raises `OutputError`, which no error of another file can be mistaken for."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _named(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _named(error) from error


class Notes(TextIOWrapper):
    """Standard error. It holds no results, so that one that cannot be written stops nothing: it falls silent."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            send_nowhere(self.fileno())
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            send_nowhere(self.fileno())


def use_checked_streams() -> None:
    """Make the process's streams the two above, in UTF-8 whatever the locale.

    Names of files that are not UTF-8 come out as they are. Standard output that was closed stays None; standard
    error that was closed becomes a file that keeps nothing, because `print(file=None)` would write to the output.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        buffered, through = sys.stdout.line_buffering, sys.stdout.write_through
        sys.stdout = Output(
            sys.stdout.detach(), "utf-8", "surrogateescape", line_buffering=buffered, write_through=through
        )
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - kept open
    elif isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = Notes(sys.stderr.detach(), "utf-8", "backslashreplace", line_buffering=True)


def send_nowhere(descriptor: int) -> None:
    """Let the null device take what is still buffered for a file, so that Python's own flush at exit succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _named(error: OSError) -> OSError:
    return error if isinstance(error, BrokenPipeError | OutputError) else OutputError(error.errno, error.strerror)
