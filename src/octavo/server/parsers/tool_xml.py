"""Reads calls that give each argument between tags of its own: <function=NAME><parameter=KEY>value</parameter>…

The values are plain text; the tool's schema says which of them are texts, the others are JSON if they can be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.server.parsers.cursor import Malformed, Reading
from octavo.server.parsers.forms import Form
from octavo.server.parsers.tool_calls import MAX_HEAD, CallParser

_KEY = re.compile(r"[^<>\n]+")
_VALUE_END = "</parameter>"


class TaggedCallParser(CallParser):
    """A call counts from its name on. Each argument is told when it is complete."""

    def __init__(self, form: Form, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """`tools` has the schema of the parameters by the name of each tool that was offered."""
        self._schemas = tools
        super().__init__(form, tools)

    def _calls(self, marker: str) -> Reading[None]:
        cursor = self._cursor
        yield from cursor.expect(marker)
        yield from cursor.space()
        while (yield from cursor.take("<function=")):
            name = self._offered((yield from self._tag()))
            self._start_call(name)
            self._told = cursor.at
            try:
                yield from self._parameters(name)
            except Malformed:
                if self._was_cut_off:
                    cursor.at = len(cursor.text)
                    self._end_call()
                    return
                yield from self._raw_arguments(self._told)
            self._told = cursor.at
            yield from cursor.space()
        if not self._num_calls:
            raise Malformed
        cursor.at = self._told

    def _tag(self) -> Reading[str]:
        """Take the rest of a tag; what stands in it."""
        cursor = self._cursor
        start = cursor.at
        while (char := (yield from cursor.peek())) != ">":
            if not char or cursor.at - start >= MAX_HEAD:
                raise Malformed
            cursor.at += 1
        cursor.at += 1
        word = cursor.text[start : cursor.at - 1].strip()
        if not _KEY.fullmatch(word):
            raise Malformed
        return word

    def _parameters(self, name: str) -> Reading[None]:
        cursor, before = self._cursor, "{"
        known = self._schemas[name].get("properties")
        yield from cursor.space()
        while (yield from cursor.take("<parameter=")):
            key = yield from self._tag()
            value = yield from self._value()
            self._tell(f"{before}{json.dumps(key, ensure_ascii=False)}: {_as_json(value, known, key)}")
            before = ", "
            self._told = cursor.at
            yield from cursor.space()
        yield from cursor.expect("</function>")
        self._tell("{}" if before == "{" else "}")
        self._end_call()

    def _value(self) -> Reading[str]:
        cursor = self._cursor
        start = cursor.at
        while True:
            place, word = cursor.find((_VALUE_END,))
            cursor.at = place
            if word:
                break
            if cursor.ended:
                cursor.ran_out = True
                raise Malformed
            yield
        cursor.at += len(_VALUE_END)
        return cursor.text[start:place].removeprefix("\n").removesuffix("\n")


def _as_json(value: str, properties: Any, key: str) -> str:
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds is not None and kinds != "string" and kinds != ["string"]:
        try:
            return json.dumps(json.loads(value), ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):  # the model did not keep to the schema: its text is all there is
            pass
    return json.dumps(value, ensure_ascii=False)
