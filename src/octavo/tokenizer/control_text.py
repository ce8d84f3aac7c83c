"""Keeps text of a conversation that looks like a control token from becoming one. It renders and encodes nothing.

Before rendering, every control token spelled by a user's string is put between two marks (private-use characters
that the conversation does not hold). In the rendering, a marked token is text; an unmarked one is the template's own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from octavo.tokenizer.splitter import SpecialSplitter
from octavo.tokenizer.text_encoder import Fragment

# Values under these keys are free text that a template may set beside other text.
_FREE_TEXT_KEYS = frozenset({"content", "text", "reasoning_content", "reasoning", "thinking"})
_HIGHEST = 0x10FFFD


class ControlTextMarks:
    """Marks for one conversation."""

    def __init__(self, control: SpecialSplitter, conversation: Any) -> None:
        """Chooses two characters that no string of `conversation` holds."""
        self._control = control
        used = {char for text in _strings(conversation) for char in text if char >= "\U00100000"}
        free = (chr(code) for code in range(_HIGHEST, 0x100000, -1) if chr(code) not in used)
        self._open, self._close = itertools.islice(free, 2)
        self._any = re.compile(f"[{self._open}{self._close}]")
        self._literal = re.compile(f"{self._open}([^{self._open}{self._close}]+){self._close}")

    def mark(self, value: Any, key: str = "") -> Any:
        """A copy of plain data in which control tokens spelled by strings (keys too) are marked."""
        if isinstance(value, str):
            return self._mark_text(value, free_text=key in _FREE_TEXT_KEYS)
        if isinstance(value, dict):
            return {self._mark_text(k, free_text=False): self.mark(item, k) for k, item in value.items()}
        if isinstance(value, list):
            return [self.mark(item, key) for item in value]
        return value

    def remove(self, rendered: str) -> str:
        """The rendering as a person would read it."""
        return self._any.sub("", self._unescape(rendered))

    def found_in(self, rendered: str) -> bool:
        """Whether any mark reached the rendering."""
        return self._any.search(self._unescape(rendered)) is not None

    def fragments(self, rendered: str) -> list[Fragment]:
        """The rendering as plain runs and the ids of the template's own control tokens; marks removed."""
        fragments: list[Fragment] = []
        run: list[str] = []  # joined once: text that grew piece by piece would be copied for each
        for piece, is_literal in self._pieces(self._unescape(rendered)):
            for fragment in [piece] if is_literal else self._control.split(piece):
                if isinstance(fragment, str):
                    run.append(fragment)
                    continue
                if run:
                    fragments.append("".join(run))
                    run = []
                fragments.append(fragment)
        return [*fragments, "".join(run)] if run else fragments

    def _pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Pieces in order, each with whether it is a marked token. A lone mark still parts what lies on its sides."""
        cursor = 0
        for match in self._literal.finditer(rendered):
            if match[1] not in self._control.tokens:
                continue
            yield from ((piece, False) for piece in self._any.split(rendered[cursor : match.start()]) if piece)
            yield match[1], True
            cursor = match.end()
        yield from ((piece, False) for piece in self._any.split(rendered[cursor:]) if piece)

    def _mark_text(self, text: Any, *, free_text: bool) -> Any:
        if not isinstance(text, str):
            return text
        marked, cursor = [], 0
        for start, end, _ in self._control.find(text):
            marked += [text[cursor:start], self._open, text[start:end], self._close]
            cursor = end
        marked.append(text[cursor:])
        if free_text and self._control.begins_at_end(text):
            marked.append(self._close)  # what the template puts next cannot complete the token
        return "".join(marked)

    def _unescape(self, rendered: str) -> str:
        """`tojson(ensure_ascii=true)` spells the marks as surrogate escapes; this takes them back."""
        if "\\ud" not in rendered:
            return rendered
        for mark in (self._open, self._close):
            rendered = rendered.replace(_json_escape(mark), mark)
        return rendered


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in (0, 2))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
