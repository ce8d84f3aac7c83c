"""Reads a request body as one JSON object and nothing looser. It knows no fields."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from octavo.server.errors import HttpError, invalid

MAX_DEPTH = 64  # of arrays and objects in each other
MAX_MEMBERS = 4096  # of one object

_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`, UTF-8 without a byte-order mark.

    Raises a 400 `HttpError` of one line for anything that is not one such object: NaN and infinities, numbers beyond a
    float, a name twice in an object, unpaired surrogates, nesting past `MAX_DEPTH`, objects past `MAX_MEMBERS`.
    """
    if not body:
        raise _refused("it is empty")
    if body.startswith(_BOM):
        raise _refused("it begins with a byte-order mark; send UTF-8 without one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"byte {error.start} is not UTF-8") from error
    _check_depth(text)
    value = _parse(text)
    if not isinstance(value, dict):
        raise _refused(f"it holds {_KINDS[type(value)]}")
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
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


def _check_depth(text: str) -> None:
    """Before parsing, whose own recursion would end at a depth that depends on the interpreter."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _refused(f"it is nested more than {MAX_DEPTH} deep")
        elif first in "]}":
            depth -= 1


def _check_surrogates(value: Any) -> None:
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        if found is not None:
            raise _refused(f"a string holds the unpaired surrogate U+{ord(found[0]):04X}")
    elif isinstance(value, list):
        for item in value:
            _check_surrogates(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_surrogates(name)
            _check_surrogates(item)
