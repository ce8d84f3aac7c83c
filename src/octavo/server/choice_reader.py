"""What one choice says, parted into reasoning, content and calls, with stop strings that look at the content only."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.engine.stop_strings import StopStrings
from octavo.outputs import FinishReason
from octavo.server.parsers.events import Arguments, CallStart, Text, ToolEvent, ToolParser
from octavo.server.parsers.reasoning import ReasoningParser

AnswerReason = FinishReason | Literal["tool_calls"]
_ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9  # what Mistral's templates insist on; others take any


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of the call `index` of a choice. The first piece has its id and its name, and no arguments."""

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class ReadPiece:
    """What a piece of text comes to. With a reason it is the last one, whether or not the engine has ended."""

    reasoning: str = ""
    text: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    finish_reason: AnswerReason | None = None
    stop_string: str | None = None  # that ended it


class ChoiceReader:
    """Reads one choice from its first piece to its last."""

    def __init__(
        self, reasoning: ReasoningParser | None, tools: ToolParser | None, stop: Sequence[str], *, parallel: bool = True
    ) -> None:
        """Without `parallel` the choice ends with its first call."""
        self._reasoning = reasoning
        self._tools = tools
        self._stops = StopStrings(stop)
        self._parallel = parallel
        self._num_calls = 0

    def read(self, text: str, reason: FinishReason | None) -> ReadPiece:
        """Take the engine's next piece; `reason` if it is its last."""
        piece = ReadPiece()
        content = self._think(piece, text, last=reason is not None)
        events: list[ToolEvent] = [Text(content)] if self._tools is None else self._tools.push(content)
        if reason is not None and self._tools is not None:
            events += self._tools.finish(cut=reason == "length")
        for event in events:
            if self._take(event, piece):
                piece.finish_reason = "tool_calls" if self._num_calls else "stop"
                piece.stop_string = self._stops.found
                return piece
        if reason is not None:
            piece.text += self._stops.flush()
            piece.finish_reason = "tool_calls" if reason == "stop" and self._num_calls else reason
        return piece

    def _think(self, piece: ReadPiece, text: str, *, last: bool) -> str:
        """Add the thinking in `text` to `piece`; the content in it."""
        if self._reasoning is None:
            return text
        piece.reasoning, content = self._reasoning.push(text)
        if last:
            more, rest = self._reasoning.finish()
            piece.reasoning += more
            content += rest
        return content

    def _take(self, event: ToolEvent, piece: ReadPiece) -> bool:
        """Add `event` to `piece`; whether the choice ends with it."""
        if isinstance(event, Text):
            shown, stopped = self._stops.feed(event.text)
            piece.text += shown
            return stopped
        if isinstance(event, CallStart):
            piece.text += self._stops.flush()
            self._num_calls += 1
            piece.calls.append(CallPiece(event.index, "", new_call_id(), event.name))
        elif isinstance(event, Arguments):
            piece.calls.append(CallPiece(event.index, event.fragment))
        else:
            return not self._parallel
        return False


def new_call_id() -> str:
    """An id that no other call has, in the one shape that all templates take back."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(ID_LENGTH))
