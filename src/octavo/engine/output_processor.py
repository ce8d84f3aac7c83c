"""Turns the sampled ids of one choice into text deltas and decides that it has ended. No torch, no scheduling."""

from __future__ import annotations

from typing import Literal, Protocol

from octavo.engine.stop_strings import StopStrings
from octavo.outputs import FinishReason, TextDelta
from octavo.sampling_params import SamplingParams


class Detokenizer(Protocol):
    """Incremental decoding of one sequence: joined results equal the whole decoded text."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class OutputProcessor:
    """One choice of one request, from its first sampled token to its finish reason.

    * An end-of-generation id (unless `ignore_eos`) or one of `stop_token_ids` ends it with "stop"; the id counts as
      an output token, its text is not shown.
    * A stop string ends it with "stop" as soon as a token completes it; the text ends before its earliest match. No
      delta holds any part of it, and text that can no longer become one is released at once.
    * `max_new_tokens` tokens end it with "length", unless the last one stops it; what was held back comes out.

    Joined deltas always equal `text`. Only the last delta has a finish reason; nothing may be pushed after it.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        eos_token_ids: frozenset[int],
        params: SamplingParams,
        max_new_tokens: int,
        index: int = 0,
        request_id: str = "",
    ) -> None:
        assert max_new_tokens >= 1, f"max_new_tokens is {max_new_tokens}"
        self._detokenizer = detokenizer
        self._stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
        self._stops = StopStrings(params.stop)
        self._has_stops = bool(params.stop)
        self.max_new_tokens = max_new_tokens
        self._index = index
        self._request_id = request_id
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """All text shown so far; joined anew at each call."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> TextDelta:
        """Take the next sampled id; return what it adds, possibly no text, and the finish reason if it is the last."""
        assert self.finish_reason is None, f"request {self._request_id!r} has ended with {self.finish_reason!r}"
        self.token_ids.append(token_id)
        if token_id in self._stop_ids:
            tail, _ = self._tail()
            return self._delta(tail, (token_id,), "stop")
        text, stopped = self._detokenizer.push(token_id), False
        if self._has_stops:
            text, stopped = self._stops.feed(text)
        if not stopped and len(self.token_ids) == self.max_new_tokens:
            tail, stopped = self._tail()
            return self._delta(text + tail, (token_id,), "stop" if stopped else "length")
        return self._delta(text, (token_id,), "stop" if stopped else None)

    def abort(self, reason: Literal["abort", "error", "length"] = "abort") -> TextDelta:
        """End from outside, before or between tokens; the delta brings the text that was held back."""
        assert self.finish_reason is None, f"request {self._request_id!r} has ended with {self.finish_reason!r}"
        tail, _ = self._tail()
        return self._delta(tail, (), reason)

    def break_off(self) -> TextDelta:
        """End after a fault of the detokenizer's, which is not asked for what it holds."""
        return self._delta("", (), "error")

    def _tail(self) -> tuple[str, bool]:
        """Text still inside the detokenizer and the stop matcher, and whether it completed a stop string."""
        text, stopped = self._stops.feed(self._detokenizer.finish())
        return text + self._stops.flush(), stopped

    def _delta(self, text: str, token_ids: tuple[int, ...], reason: FinishReason | None) -> TextDelta:
        self._pieces.append(text)
        self.finish_reason = reason
        return TextDelta(self._request_id, self._index, text, token_ids, reason)
