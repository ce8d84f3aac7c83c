"""Reads a request body as one JSON object and nothing looser. It knows no fields."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from octavo.server.errors import HttpError, invalid

MAX_DEPTH = 64  # of arrays and objects in each other
MAX_MEMBERS = 4096  # of one object
MAX_CONTAINERS = 1 << 18  # arrays and objects of a body
MAX_VALUES = 1 << 21  # of a body

# All of these take time in proportion to the body, whatever is in it: a string that never ends goes to the body's end.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNPAIRED = re.compile(
    rb"(?:[^\\]++|" + _PAIR + rb"|\\(?!u[dD][89a-fA-F]).)*+\\u([dD][89a-fA-F][0-9a-fA-F]{2})", re.DOTALL
)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_ARRAYS = bytes.maketrans(b"{}", b"[]")
_BOM = b"\xef\xbb\xbf"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`, UTF-8 without a byte-order mark.

    Raises a 400 `HttpError` of one line for anything that is not one such object: NaN and infinities, numbers beyond a
    float, a name twice in an object, unpaired surrogates, nesting past `MAX_DEPTH`, objects past `MAX_MEMBERS`, bodies
    past `MAX_CONTAINERS` or `MAX_VALUES`, which would keep others waiting while they are read.
    """
    if not body:
        raise _refused("it is empty")
    if body.startswith(_BOM):
        raise _refused("it begins with a byte-order mark; send UTF-8 without one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"byte {error.start} is not UTF-8") from error
    _check_shape(body)
    value = _parse(text)
    if not isinstance(value, dict):
        raise _refused(f"it holds {_KINDS[type(value)]}")
    unpaired = _UNPAIRED.match(body)  # UTF-8 has none, so only an escape can be one
    if unpaired is not None:
        raise _refused(f"a string holds the unpaired surrogate U+{unpaired[1].decode().upper()}")
    return value


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _refused(reason: str) -> HttpError:
    return invalid(f"the body cannot be read as JSON: {reason}; send one JSON object", code="invalid_json")


def _parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _refused(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # Python refuses to convert a whole number of more than 4300 digits
        raise _refused("it holds a number with thousands of digits") from error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise _refused(f"an object has {len(pairs)} members, and at most {MAX_MEMBERS} are allowed")
    members = dict(pairs)
    if len(members) != len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise _refused(f"the name {name!a:.60} appears twice in one object")
            names.add(name)
    return members


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _refused(f"the number {digits:.30} is too large")
    return value


def _constant(name: str) -> NoReturn:
    raise _refused(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_float=_float, parse_constant=_constant)


def _check_shape(body: bytes) -> None:
    """Before parsing, whose own recursion would end at a depth that depends on the interpreter."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH and body.count(b",") < MAX_VALUES:
        return
    bare = _STRINGS.sub(b"", body)
    containers = bare.count(b"[") + bare.count(b"{")
    if containers > MAX_CONTAINERS:
        raise _refused(f"it has {containers} arrays and objects, and at most {MAX_CONTAINERS} are allowed")
    commas = bare.count(b",")
    if commas >= MAX_VALUES:
        raise _refused(f"it has more than {commas} values, and at most {MAX_VALUES} are allowed")
    if _is_too_deep(bare):  # last: it goes through all brackets up to MAX_DEPTH times
        raise _refused(f"it is nested more than {MAX_DEPTH} deep")


def _is_too_deep(bare: bytes) -> bool:
    """Of a body without its strings."""
    brackets = bare.translate(_AS_ARRAYS, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):  # each time without the innermost
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH
