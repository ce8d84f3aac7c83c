"""Runs parsers over a text that is cut at given places, and joins what they tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from octavo.server.parsers.detect import parser_of
from octavo.server.parsers.events import Arguments, CallEnd, CallStart, Text
from octavo.server.parsers.forms import FORMS
from octavo.server.parsers.reasoning import THINKING, ReasoningParser

Call = tuple[str, str]  # name and arguments
TOOLS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    "get_weather": {},
}


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    places = [0, *cuts, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def read_calls(form: str, pieces: Sequence[str], *, cut: bool = False) -> tuple[str, list[Call]]:
    """The content, and the calls; each must begin before its arguments come and end at most once."""
    parser = parser_of(FORMS[form], TOOLS)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish(cut=cut)
    content, calls, ended = "", [], set()
    for event in events:
        if isinstance(event, Text):
            assert event.text
            content += event.text
        elif isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            assert event.fragment and event.index == len(calls) - 1 and event.index not in ended
            calls[-1] = (calls[-1][0], calls[-1][1] + event.fragment)
        else:
            assert isinstance(event, CallEnd) and event.index == len(calls) - 1 and event.index not in ended
            ended.add(event.index)
    return content, calls


def read_thinking(name: str, pieces: Sequence[str], *, begun: bool = False) -> tuple[str, str]:
    """What was thought, and what was said."""
    parser = ReasoningParser(THINKING[name], begun=begun)
    told = [parser.push(piece) for piece in pieces] + [parser.finish()]
    return "".join([thought for thought, _ in told]), "".join([said for _, said in told])
