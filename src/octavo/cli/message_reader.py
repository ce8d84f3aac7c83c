"""Reads the messages of a conversation from a terminal or a pipe. Understands line continuation, no commands."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass

from octavo.cli.prompt import decode
from octavo.errors import InvalidRequest

_QUOTES = '"""'
_FIRST, _NEXT = "> ", "… "


@dataclass(frozen=True, slots=True)
class Message:
    """What was typed. `quoted` is true of lines between quotes, which are never a command."""

    text: str
    quoted: bool = False


def is_interactive() -> bool:
    """Whether a person types at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_message() -> Message | None:
    """The next message from standard input, of several lines where the user says so; None at its end.

    What was begun when the input ends is a message too. Raises `InvalidRequest` for a line that is not UTF-8, and
    then what belongs to the same message is dropped with it.
    """
    line = _read_line(_FIRST)
    if line is None:
        return None
    if line.strip() == _QUOTES:
        return Message(_until_quotes(), quoted=True)
    while line.endswith("\\"):
        more = _read_line(_NEXT)
        line = line[:-1] + ("" if more is None else "\n" + more)
    return Message(line)


def _until_quotes() -> str:
    lines: list[str] = []
    while (line := _read_line(_NEXT)) is not None and line.strip() != _QUOTES:
        lines.append(line)
    return "\n".join(lines)


def _read_line(prompt: str) -> str | None:
    """A line without its end, None at the end of input. The prompt is drawn, and editing works, only at a terminal."""
    if is_interactive():
        try:
            return _ask(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InvalidRequest("the line is not UTF-8; set the terminal to it") from error
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    return decode(line, "a line of standard input").removesuffix("\n").removesuffix("\r")


def _ask(prompt: str) -> str:
    if sys.stdout is not None and sys.stdout.isatty():
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401 - importing it gives input() history and editing
        return input(prompt)
    # input() would write its prompt among the answers.
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()
