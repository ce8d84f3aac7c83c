"""Where a prompt comes from: the command line, a file, or standard input. It is taken verbatim, as one prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from octavo.errors import InvalidRequest

_BOM = b"\xef\xbb\xbf"


def read_prompt(text: str | None, file: Path | None) -> str:
    """The prompt. With `-p` or `-f`, standard input is left alone.

    Line ends and a final newline are kept; a UTF-8 byte-order mark at the start is not part of the text. Raises
    `InvalidRequest` if there is no prompt, it is empty, or it is not UTF-8.
    """
    if text is not None and file is not None:
        raise InvalidRequest("a prompt was given both with -p and with -f; give one of them")
    if text is not None:
        return _checked(text, "-p")
    if file is not None:
        return _checked(
            decode(_read(file.read_bytes, f"the prompt file {str(file)!r}", "check the path"), str(file)), str(file)
        )
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidRequest("there is no prompt; give one with -p TEXT, -f FILE, or on standard input")
    return _checked(
        decode(_read(sys.stdin.buffer.read, "standard input", "give the prompt with -p or -f"), "standard input"),
        "standard input",
    )


def decode(data: bytes, source: str) -> str:
    """UTF-8 text without a byte-order mark at its start; line ends as they are. Raises `InvalidRequest`."""
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{source} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}; convert it first"
        ) from error


def _read(read: Callable[[], bytes], source: str, remedy: str) -> bytes:
    try:
        return read()
    except OSError as error:
        raise InvalidRequest(f"{source} cannot be read: {error.strerror or error}; {remedy}") from error


def _checked(text: str, source: str) -> str:
    if not text:
        raise InvalidRequest(
            f"the prompt from {source} is empty; give at least one character (-p, -f or standard input)"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the prompt from {source} is not UTF-8 at character {error.start}; convert it first"
        ) from error
    return text
