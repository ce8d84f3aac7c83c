"""Parts what a model thinks from what it says. The thinking stands first, between two markers of the model's own."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.server.parsers.cursor import Cursor, Reading


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers around it."""

    name: str
    begin: str
    end: str


_TABLE = (
    Thinking("think", "<think>", "</think>"),
    Thinking("thinking", "<thinking>", "</thinking>"),
    Thinking("mistral", "[THINK]", "[/THINK]"),
    Thinking("seed", "<seed:think>", "</seed:think>"),
    Thinking("minimax", "<mm:think>", "</mm:think>"),
    Thinking("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("gemma", "<|channel>thought\n", "<channel|>"),
)
THINKING = {each.name: each for each in _TABLE}


class ReasoningParser:
    """Reads one answer. White space around the thinking is left out; thinking that does not end is all there is."""

    def __init__(self, markers: Thinking, *, begun: bool) -> None:
        """`begun` if the prompt ends within the thinking, as templates have it that open it themselves."""
        self._markers = markers
        self._begun = begun
        self._cursor = Cursor()
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._machine = self._read()
        next(self._machine)

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; what can be told of the thinking, and of what is said after it."""
        self._cursor.text += text
        next(self._machine)
        return self._take()

    def finish(self) -> tuple[str, str]:
        """The rest. Nothing may be pushed after it."""
        self._cursor.ended = True
        next(self._machine, None)
        return self._take()

    def _take(self) -> tuple[str, str]:
        told = "".join(self._reasoning), "".join(self._content)
        self._reasoning, self._content = [], []
        return told

    def _read(self) -> Reading[None]:
        cursor = self._cursor
        yield
        if not self._begun:
            yield from cursor.space()
            self._begun = yield from cursor.take(self._markers.begin)
        if self._begun:
            yield from self._think()
            yield from cursor.space()
        else:
            cursor.at = 0
        while True:
            self._content.append(cursor.text[cursor.at :])
            cursor.at = len(cursor.text)
            cursor.drop()
            if cursor.ended:
                return
            yield

    def _think(self) -> Reading[None]:
        cursor, space, end = self._cursor, "", self._markers.end
        yield from cursor.space()
        if (yield from cursor.take(self._markers.begin)):  # one that repeats the marker which the prompt ends with
            yield from cursor.space()
        while True:
            place, found = cursor.find((end,))
            text = space + cursor.text[cursor.at : place]
            said = text.rstrip()
            space = text[len(said) :]
            self._reasoning.append(said)
            cursor.at = place + len(found)
            if found or cursor.ended:
                return
            cursor.drop()
            yield
