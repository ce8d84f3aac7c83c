"""Finds stop strings in streamed text and holds back what may still become one. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Streams text past a set of stop strings.

    Held text is always the longest end of the text that is a proper prefix of some stop string, and nothing more.
    Each character is looked at once per stop string (Knuth, Morris, Pratt 1977), however the text is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""
        self.found: str | None = None  # the stop string that cut

    def feed(self, text: str) -> tuple[str, bool]:
        """Take more text; return what may be shown now, and whether a stop string is complete.

        Of several that are complete after this text the one with the earliest start cuts. Once one is, what may be
        shown ends before it and nothing may be fed any more.
        """
        if not self._matchers:
            return text, False
        starts = [(start, m.stop) for m in self._matchers if (start := m.feed(text)) is not None]
        pending = self._held + text
        if starts:
            start, self.found = min(starts, key=lambda each: each[0])
            cut = len(self._held) + start
            self._held = ""
            return pending[:cut], True
        cut = len(pending) - max(matcher.matched for matcher in self._matchers)
        self._held = pending[cut:]
        return pending[:cut], False

    def flush(self) -> str:
        """The held text, which no more text can complete."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """One stop string. `matched` characters at the end of the text so far are its beginning."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._borders = _borders(stop)
        self.matched = 0

    def feed(self, text: str) -> int | None:
        """Where the first match that ends in `text` starts, relative to its first character (may be negative)."""
        stop, borders, matched = self.stop, self._borders, self.matched
        position = 0
        while position < len(text):
            if matched == 0:  # skip what cannot begin a match at the speed of a substring search
                position = text.find(stop[0], position)
                if position < 0:
                    break
            while matched and text[position] != stop[matched]:
                matched = borders[matched - 1]
            if text[position] == stop[matched]:
                matched += 1
            position += 1
            if matched == len(stop):
                return position - matched
        self.matched = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
