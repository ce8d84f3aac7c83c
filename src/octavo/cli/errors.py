"""How a command ends: every failure is one plain line on standard error and an exit status.

0    done
1    a fault of ours
2    what was asked for cannot be (bad usage, bad model, no room)
130  interrupted (Ctrl-C)        141  nobody reads our output any more        143  terminated
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import NoReturn, Protocol, cast

import typer

from octavo.cli.streams import OutputError, send_nowhere
from octavo.errors import OctavoError

MAX_LINE = 500  # characters of a message
EXIT_FAULT = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # SIGPIPE, which Windows does not define
EXIT_TERMINATED = 128 + signal.SIGTERM


class _CommandContext(Protocol):
    @property
    def command_path(self) -> str: ...


class _CommandLineError(Protocol):
    """What Click's ClickException offers."""

    exit_code: int

    def format_message(self) -> str: ...


# Depending on its release, Typer uses Click or carries a copy of it. The root of the family that a command line can
# raise is therefore taken from the one member that Typer always exports.
_COMMAND_LINE_ERRORS = cast(
    type[Exception], next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
)


def run_command(command: Callable[[], object]) -> NoReturn:
    """Call `command` and end the process as the table above says. An unexpected exception goes to `report_fault`.

    With standard output closed it is not called: whatever it found out would be lost.
    """
    sys.excepthook = report_fault
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `entry` left it; from here on interrupts unwind
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.stdout is None:
        print_error("standard output is closed; leave it open or send it to a file")
        sys.exit(EXIT_FAULT)
    sys.exit(exit_status_of(command))


def exit_status_of(command: Callable[[], object]) -> int:
    """Call `command`, report an expected failure, and return the exit status. Unexpected exceptions pass through."""
    with _terminable():
        try:
            command()
        except typer.Exit as end:
            return _flushed(end.exit_code)
        except OutputError as error:
            return _report_output(error)
        except OctavoError as error:
            return _report(str(error), error.exit_status)
        except _COMMAND_LINE_ERRORS as error:
            return _report_usage(error)
        except BrokenPipeError:
            return _silence_stdout(EXIT_BROKEN_PIPE)
        except (KeyboardInterrupt, typer.Abort):
            return EXIT_INTERRUPTED
        return _flushed(0)


def report_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An excepthook: one line for an exception that nobody expected, or its traceback under OCTAVO_DEBUG=1."""
    if issubclass(kind, KeyboardInterrupt):  # between the end of the command and that of the process
        os._exit(EXIT_INTERRUPTED)
    if os.environ.get("OCTAVO_DEBUG", "") not in ("", "0"):
        traceback.print_exception(kind, error, trace)
        return
    detail = f"{kind.__name__}: {error}" if str(error) else kind.__name__
    print_error(f"unexpected {detail}; OCTAVO_DEBUG=1 shows the traceback")


def print_error(message: str) -> None:
    """Print `message` as exactly one line without control characters."""
    if sys.stderr is not None:
        print(f"octavo: error: {one_line(message)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """`text` with every run of whitespace made one space and other unprintable characters removed.

    Of a text longer than `MAX_LINE` the middle is left out: a value may be long, and the remedy stands at the end.
    """
    line = "".join(_printable(" ".join(text.split())))
    if len(line) <= MAX_LINE:
        return line
    head = MAX_LINE // 2
    return f"{line[:head]} … {line[head + 3 - MAX_LINE :]}"


def _printable(text: Iterable[str]) -> Iterator[str]:
    # Surrogates stand for bytes of the command line that are no UTF-8; standard error escapes them.
    return (character for character in text if character.isprintable() or "\ud800" <= character <= "\udfff")


def _report(message: str, status: int) -> int:
    status = _flushed(status)
    print_error(message)
    return status


def _report_usage(error: Exception) -> int:
    usage = cast(_CommandLineError, error)
    message = usage.format_message().replace("Value error, ", "").rstrip(".")
    context = cast(_CommandContext | None, getattr(error, "ctx", None))
    hint = f"; see `{context.command_path} --help`" if context is not None else ""
    return _report(f"{message[:1].lower()}{message[1:]}{_rejected_value(error, message)}{hint}", usage.exit_code)


def _rejected_value(error: Exception, message: str) -> str:
    """What was given, where Typer's own message does not say."""
    from pydantic import ValidationError  # Typer has imported it by now if it is in play

    if not isinstance(error.__cause__, ValidationError):
        return ""
    value = repr(error.__cause__.errors(include_url=False)[0]["input"])
    return "" if value in message else f", got {value}"


def _flushed(status: int) -> int:
    """`status`, once what was printed so far has reached its reader; another status if it cannot."""
    if sys.stdout is None:  # the process was started with it closed
        return status
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence_stdout(EXIT_BROKEN_PIPE)
    except OSError as error:
        return _report_output(error)
    return status


def _report_output(error: OSError) -> int:
    print_error(f"cannot write to standard output ({error.strerror or error}); free some space or send it elsewhere")
    return _silence_stdout(EXIT_FAULT)


def _silence_stdout(status: int) -> int:
    """Send what is still buffered nowhere, so that Python's own flush at exit does not complain a second time."""
    send_nowhere(sys.stdout.fileno())
    return status


@contextmanager
def _terminable() -> Iterator[None]:
    """While open, SIGTERM unwinds the stack, so that locks, files and child processes are let go."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
