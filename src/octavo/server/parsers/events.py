"""What a tool parser tells, piece by piece. Joined pieces do not depend on how the text was cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """More content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins, of a tool that was offered. `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of call `index`, as JSON text."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Call `index` is complete."""

    index: int


ToolEvent = Text | CallStart | Arguments | CallEnd


class ToolParser(Protocol):
    """Reads one answer. What is no call of an offered tool comes out as the text that it is."""

    def push(self, text: str) -> list[ToolEvent]:
        """Take more text; tell what can be told now."""
        ...

    def finish(self, *, cut: bool = False) -> list[ToolEvent]:
        """The answer has ended: tell the rest, without the beginning of a call that it was `cut` off in. Nothing may be
        pushed after it.
        """
        ...
