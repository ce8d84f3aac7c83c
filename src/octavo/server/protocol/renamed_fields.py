"""Errors of the chat request that another API's request became, told with that API's names of the fields."""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo.errors import OctavoError
from octavo.server.errors import HttpError, http_error

_NESTED = re.compile(r"^(tools\[\d+\])\.function\b")  # these APIs have a tool's fields one level higher


def renamed(error: OctavoError, names: Mapping[str, str]) -> HttpError:
    """`error` with the field that it names, and that its message begins with, called as `names` has it."""
    found = http_error(error)
    return HttpError(
        found.status,
        _renamed(str(found), names),
        type=found.type,
        param=None if found.param is None else _renamed(found.param, names),
        code=found.code,
        headers=found.headers,
    )


def _renamed(text: str, names: Mapping[str, str]) -> str:
    text = _NESTED.sub(r"\1", text)
    for old in sorted(names, key=len, reverse=True):
        if re.match(rf"{re.escape(old)}\b", text):
            return names[old] + text[len(old) :]
        if f" and {old} has " in text:  # a prompt that is too long
            return text.replace(f" and {old} has ", f" and {names[old]} has ")
    return text
