"""Reads calls written as JSON, or as a name with its arguments behind it, in any form of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from octavo.server.parsers.cursor import Cursor, Malformed, Reading
from octavo.server.parsers.events import Arguments, CallEnd, CallStart, Text, ToolEvent
from octavo.server.parsers.forms import Form
from octavo.server.parsers.json_value import another, colon, json_string, json_value
from octavo.server.parsers.python_call import python_call

MAX_HEAD = 256  # characters up to the arguments, where the name comes first
NAME_KEYS = ("name", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args")
OTHER_KEYS = ("id", "type", "tool_call_id", "call_id")
_LABEL = re.compile(r"[a-z_]*")
_NAMED = re.compile(rf'"(?:{"|".join(NAME_KEYS)})"\s*:\s*"(?P<name>[a-zA-Z0-9_-]+)(?P<end>"|\Z)')


class CallParser:
    """Reads one answer. A call counts from where its name is known and its arguments begin; till then, what turns out
    to be none is text. From there on, arguments that are no JSON are told as they were written. What an answer was cut
    off in before it counts is neither: it is left out.
    """

    def __init__(self, form: Form, tools: Collection[str]) -> None:
        """`tools` are the names that were offered; a call of another one is text."""
        self._form = form
        self._tools = frozenset(tools)
        self._cursor = Cursor()
        self._events: list[ToolEvent] = []
        self._num_calls = 0
        self._space = ""  # at the end of what was said: it is not said if a call follows
        self._spoken = False
        self._cut = False
        self._told = 0  # all before it has been told, if the call that is read turns out to be none
        self._machine = self._read()
        next(self._machine)

    def push(self, text: str) -> list[ToolEvent]:
        """Take more text; tell what can be told now."""
        self._cursor.text += text
        next(self._machine)
        return self._take_events()

    def finish(self, *, cut: bool = False) -> list[ToolEvent]:
        """Tell the rest, without the beginning of a call that the answer was `cut` off in. Nothing may be pushed after
        it.
        """
        self._cursor.ended, self._cut = True, cut
        next(self._machine, None)
        if self._space and not self._num_calls:
            self._events.append(Text(self._space))
        return self._take_events()

    def _take_events(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    def _read(self) -> Reading[None]:
        cursor, markers = self._cursor, self._form.markers
        yield
        if (self._form.bare or self._form.lenient) and (yield from cursor.space()) in ("{", "["):
            cursor.at, bracket = 0, cursor.at
            yield from self._attempt("", bracket)
        else:
            cursor.at = 0
        while True:
            place, marker = cursor.find(markers)
            left_out = self._begun_marker() if cursor.ended and self._cut and not marker else 0
            self._say(cursor.text[cursor.at : place - left_out])
            if left_out:
                self._space = ""
            cursor.at = place
            if marker:
                yield from self._attempt(marker, place)
                continue
            if cursor.ended:
                return
            cursor.drop()
            yield

    def _begun_marker(self) -> int:
        """How many characters at the end begin a marker: any count behind a call, else more than half of one."""
        rest, markers = self._cursor.text[self._cursor.at :], self._form.markers
        sizes = (
            size
            for marker in markers
            for size in range(1 if self._num_calls else len(marker) // 2 + 1, len(marker))
            if rest.endswith(marker[:size])
        )
        return max(sizes, default=0)

    def _attempt(self, marker: str, place: int) -> Reading[None]:
        """Read the calls that may begin at `place`, with `marker`. Text goes on behind them, or behind the marker."""
        cursor, before = self._cursor, self._num_calls
        self._told, cursor.at, cursor.ran_out = cursor.at, place, False
        try:
            yield from self._calls(marker)
        except Malformed:
            cursor.at = self._told
        if self._num_calls > before:
            yield from self._close()
            if self._was_cut_off:
                cursor.at = len(cursor.text)
        elif self._was_cut_off and self._begins_call(marker, place):
            cursor.at, self._space = len(cursor.text), ""
        else:
            self._say(cursor.text[cursor.at : place + len(marker)])
            cursor.at = max(cursor.at, place + len(marker))

    @property
    def _was_cut_off(self) -> bool:
        return self._cut and self._cursor.ran_out

    def _begins_call(self, marker: str, place: int) -> bool:
        """Whether what was cut off would have been a call: it has a marker of its own, or the beginning of a name."""
        if marker and not self._form.labels:
            return True
        text = self._cursor.text[place:]
        if found := _NAMED.search(text):
            name = found["name"]
            return name in self._tools if found["end"] else any(tool.startswith(name) for tool in self._tools)
        return self._form.pythonic and any(f"{tool}(" in text for tool in self._tools)

    def _calls(self, marker: str) -> Reading[None]:
        cursor, form = self._cursor, self._form
        yield from cursor.expect(marker)
        if marker and marker == form.opening:
            yield from cursor.space()
            yield from cursor.expect(form.begins[0])
        if form.labels and marker:
            yield from self._label()
        char = yield from cursor.space()
        if form.head and char not in ("{", "["):
            yield from self._named()
            return
        while char:
            if char == "[":
                yield from self._list()
            elif char == "{":
                yield from self._object()
            elif form.pythonic:
                yield from self._python()
            else:
                raise Malformed
            self._told = cursor.at
            char = yield from cursor.space()
            if char == ";":
                cursor.at += 1
                char = yield from cursor.space()
            if char not in ("{", "[") and not (form.pythonic and marker and char.isidentifier()):
                break
        cursor.at = self._told

    def _label(self) -> Reading[None]:
        start = self._cursor.at
        while (char := (yield from self._cursor.peek())) and _LABEL.fullmatch(char):
            self._cursor.at += 1
        word = self._cursor.text[start : self._cursor.at]
        if word and word not in self._form.labels:
            raise Malformed

    def _close(self) -> Reading[None]:
        """Take the markers behind calls, as far as they are there."""
        for word in (self._form.end, self._form.closing):
            if word:
                before = self._cursor.at
                yield from self._cursor.space()
                if not (yield from self._cursor.take(word)):
                    self._cursor.at = before

    def _named(self) -> Reading[None]:
        cursor, separator = self._cursor, self._form.separator
        start = cursor.at
        while not (yield from cursor.take(separator)):
            if not (yield from cursor.peek()) or cursor.at - start >= MAX_HEAD:
                raise Malformed
            cursor.at += 1
        head = re.fullmatch(self._form.head, cursor.text[start : cursor.at - len(separator)])
        if head is None:
            raise Malformed
        yield from cursor.space()
        yield from self._arguments(self._offered(head["name"]))

    def _list(self) -> Reading[None]:
        cursor = self._cursor
        yield from cursor.expect("[")
        while True:
            char = yield from cursor.space()
            if char == "{":
                yield from self._object()
            elif self._form.pythonic:
                yield from self._python()
            else:
                raise Malformed
            if not (yield from another(cursor, "]")):
                return

    def _python(self) -> Reading[None]:
        name, arguments = yield from python_call(self._cursor)
        self._whole_call(self._offered(name), arguments)

    def _object(self) -> Reading[None]:
        """Take an object that is a call, or that holds one as `function`. Its fields may come in any order."""
        cursor = self._cursor
        name, held, begun = "", "", self._num_calls
        yield from cursor.expect("{")
        while True:
            yield from cursor.space()
            key = yield from json_string(cursor)
            yield from colon(cursor)
            if key == "function" and (yield from cursor.peek()) == "{":
                yield from self._object()
            elif key in NAME_KEYS and not name:
                name = self._offered((yield from json_string(cursor)))
            elif key in ARGUMENT_KEYS and not held:
                if name and self._num_calls == begun:
                    yield from self._arguments(name)
                    held = "told"
                else:
                    held = yield from self._held_arguments()
            elif key in OTHER_KEYS:
                yield from json_value(cursor)
            else:
                raise Malformed
            if not (yield from another(cursor, "}")):
                break
        if self._num_calls == begun:
            if not name:
                raise Malformed
            self._whole_call(name, held or "{}")
        self._told = cursor.at

    def _arguments(self, name: str) -> Reading[None]:
        """Tell the arguments that come next, as they come. They are an object, or a string that holds one, or null."""
        if (yield from self._cursor.peek()) != "{":
            whole = yield from self._held_arguments()
            self._whole_call(name, whole)
            return
        self._start_call(name)
        start, reader = self._cursor.at, json_value(self._cursor)
        try:
            for _ in reader:
                self._tell(self._cursor.text[start : self._cursor.at])
                start = self._cursor.at
                yield
        except Malformed:
            yield from self._raw_arguments(start)
        self._tell(self._cursor.text[start : self._cursor.at])
        self._end_call()

    def _held_arguments(self) -> Reading[str]:
        """The arguments that come next, once they are whole."""
        cursor = self._cursor
        start, char = cursor.at, (yield from cursor.peek())
        if char == "{":
            yield from json_value(cursor)
            return cursor.text[start : cursor.at]
        if char == "n":
            yield from cursor.expect("null")
            return "{}"
        text = yield from json_string(cursor)
        if not _is_object(text):
            raise Malformed
        return text

    def _raw_arguments(self, start: int) -> Reading[None]:
        """Tell what was written in the place of arguments, up to the next marker."""
        cursor = self._cursor
        words: Sequence[str] = (self._form.end,) if self._form.end else self._form.begins
        while True:
            place, word = cursor.find(words)
            self._tell(cursor.text[start:place])
            start = cursor.at = place
            if word or cursor.ended:
                break
            yield
        self._end_call()
        raise Malformed

    def _offered(self, name: str) -> str:
        if name not in self._tools:
            raise Malformed
        return name

    def _start_call(self, name: str) -> None:
        self._space = ""
        self._events.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def _whole_call(self, name: str, arguments: str) -> None:
        self._start_call(name)
        self._tell(arguments)
        self._end_call()

    def _tell(self, arguments: str) -> None:
        if arguments:
            self._events.append(Arguments(self._num_calls - 1, arguments))

    def _end_call(self) -> None:
        self._events.append(CallEnd(self._num_calls - 1))
        self._told = self._cursor.at

    def _say(self, text: str) -> None:
        """White space waits for what comes next, and is left out between calls and beside them."""
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if self._num_calls and not self._spoken:
            said = said.lstrip()
        if said:
            self._spoken = True
            self._events.append(Text(said))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
