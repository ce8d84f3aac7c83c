"""An answer as parts in a row: thinking, text, calls. APIs that tell answers part by part write them from this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from octavo.server.generation import ChoiceDelta

PartKind = Literal["reasoning", "text", "call"]
Change = Literal["begins", "grows", "ends"]


@dataclass(slots=True)
class AnswerPart:
    """`text` is what it has so far; of a call, its arguments. `number` counts the parts of an answer from 0."""

    number: int
    kind: PartKind
    text: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PartChange:
    """`text` is what a growing part gained."""

    change: Change
    part: AnswerPart
    text: str = ""


@dataclass(slots=True)
class AnswerParts:
    """Cuts the deltas of one choice into parts. A part ends where the next one begins."""

    parts: list[AnswerPart] = field(default_factory=list)
    _open: AnswerPart | None = None

    def take(self, delta: ChoiceDelta) -> Iterator[PartChange]:
        """What `delta` changes, in order. Its own order is thinking, text, calls."""
        if delta.reasoning:
            yield from self._more("reasoning", delta.reasoning)
        if delta.text:
            yield from self._more("text", delta.text)
        for piece in delta.calls:
            if piece.name is not None:
                part = AnswerPart(len(self.parts), "call", "", piece.call_id or "", piece.name)
                yield from self._begin(part)
            if piece.arguments:
                yield from self._more("call", piece.arguments)
        if delta.finish_reason is not None:
            yield from self._end()

    def _more(self, kind: PartKind, text: str) -> Iterator[PartChange]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(AnswerPart(len(self.parts), kind))
        assert self._open is not None
        self._open.text += text
        yield PartChange("grows", self._open, text)

    def _begin(self, part: AnswerPart) -> Iterator[PartChange]:
        yield from self._end()
        self.parts.append(part)
        self._open = part
        yield PartChange("begins", part)

    def _end(self) -> Iterator[PartChange]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield PartChange("ends", ended)


def parts_of(choice: ChoiceDelta) -> list[AnswerPart]:
    """The parts of a whole answer."""
    cut = AnswerParts()
    for _ in cut.take(choice):
        pass
    return cut.parts
