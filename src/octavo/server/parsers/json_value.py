"""Reads one JSON value from a growing text, strictly, and stops right behind it. It builds nothing."""

from __future__ import annotations

import json
import re

from octavo.server.parsers.cursor import Cursor, Malformed, Reading

MAX_DEPTH = 64
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_CHARS = frozenset("+-.0123456789eE")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "true", "f": "false", "n": "null"}


def json_value(cursor: Cursor, depth: int = 0) -> Reading[None]:
    """Take the value that begins here. Raises `Malformed` at the first character that cannot be, or at the end."""
    if depth > MAX_DEPTH:
        raise Malformed
    char = yield from cursor.peek()
    if char == "{":
        yield from _members(cursor, depth)
    elif char == "[":
        yield from _items(cursor, depth)
    elif char == '"':
        yield from json_string(cursor)
    elif char in _WORDS:
        yield from _word(cursor, _WORDS[char])
    elif char:
        yield from _number(cursor)
    else:
        raise Malformed


def json_string(cursor: Cursor) -> Reading[str]:
    """Take a string; its value. Raises `Malformed`."""
    start = cursor.at
    yield from cursor.expect('"')
    while True:
        run = _PLAIN.match(cursor.text, cursor.at)
        assert run is not None, "it matches nothing, too"
        cursor.at = run.end()
        char = yield from cursor.peek()
        if char == '"':
            cursor.at += 1
            return str(json.loads(cursor.text[start : cursor.at]))
        if char == "\\":
            cursor.at += 1
            yield from _escape(cursor)
        elif not char or char < " ":
            raise Malformed


def _escape(cursor: Cursor) -> Reading[None]:
    char = yield from cursor.peek()
    if not char or char not in '"\\/bfnrtu':
        raise Malformed
    cursor.at += 1
    for _ in range(4 if char == "u" else 0):
        if (yield from cursor.peek()) not in _HEX:
            raise Malformed
        cursor.at += 1


def _members(cursor: Cursor, depth: int) -> Reading[None]:
    yield from cursor.expect("{")
    if (yield from cursor.space()) == "}":
        cursor.at += 1
        return
    while True:
        yield from cursor.space()
        yield from json_string(cursor)
        yield from colon(cursor)
        yield from json_value(cursor, depth + 1)
        if not (yield from another(cursor, "}")):
            return


def _items(cursor: Cursor, depth: int) -> Reading[None]:
    yield from cursor.expect("[")
    if (yield from cursor.space()) == "]":
        cursor.at += 1
        return
    while True:
        yield from cursor.space()
        yield from json_value(cursor, depth + 1)
        if not (yield from another(cursor, "]")):
            return


def colon(cursor: Cursor) -> Reading[None]:
    """Take a colon and the space around it. Raises `Malformed`."""
    yield from cursor.space()
    yield from cursor.expect(":")
    yield from cursor.space()


def another(cursor: Cursor, closing: str) -> Reading[bool]:
    """Take a comma, or `closing`; whether it was the comma. Raises `Malformed` for anything else."""
    char = yield from cursor.space()
    if not char or char not in (",", closing):
        raise Malformed
    cursor.at += 1
    return char == ","


def _word(cursor: Cursor, word: str) -> Reading[None]:
    for expected in word:
        if (yield from cursor.peek()) != expected:
            raise Malformed
        cursor.at += 1


def _number(cursor: Cursor) -> Reading[None]:
    start = cursor.at
    while (yield from cursor.peek()) in _NUMBER_CHARS:
        cursor.at += 1
    if not _NUMBER.fullmatch(cursor.text, start, cursor.at):
        raise Malformed
