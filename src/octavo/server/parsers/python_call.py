"""Reads one call as Python writes it, from a growing text, and gives its arguments as JSON. It runs nothing."""

from __future__ import annotations

import ast
import json

from octavo.server.parsers.cursor import Cursor, Malformed, Reading

MAX_CHARS = 32 * 1024
MAX_DEPTH = 32
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def python_call(cursor: Cursor) -> Reading[tuple[str, str]]:
    """Take `name(key=literal, …)`, maybe within `print(…)`; the name and the arguments. Raises `Malformed`."""
    start = cursor.at
    yield from _expression(cursor)
    return _read(cursor.text[start : cursor.at])


def _expression(cursor: Cursor) -> Reading[None]:
    """Take all up to the bracket that closes the first one."""
    start = cursor.at
    open_brackets: list[str] = []
    while True:
        char = yield from cursor.peek()
        if not char or cursor.at - start >= MAX_CHARS:
            raise Malformed
        if not open_brackets and char != "(" and not (char.isidentifier() or char.isdecimal() or char == "."):
            raise Malformed
        cursor.at += 1
        if char in "\"'":
            yield from _string(cursor, char)
        elif char in _PAIRS:
            open_brackets.append(_PAIRS[char])
            if len(open_brackets) > MAX_DEPTH:
                raise Malformed
        elif char in ")]}":
            if char != open_brackets.pop():
                raise Malformed
            if not open_brackets:
                return


def _string(cursor: Cursor, quote: str) -> Reading[None]:
    """Take the rest of a string, which may be one of three quotes."""
    if (yield from cursor.take(quote * 2)):
        quote *= 3
    while not (yield from cursor.take(quote)):
        char = yield from cursor.peek()
        if not char:
            raise Malformed
        cursor.at += 1
        if char == "\\":
            if not (yield from cursor.peek()):
                raise Malformed
            cursor.at += 1


def _read(text: str) -> tuple[str, str]:
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print" and call.args:
            call = call.args[0]
        if not isinstance(call, ast.Call) or call.args:
            raise Malformed
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        arguments = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise Malformed
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Malformed from error
