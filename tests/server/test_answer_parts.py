"""An answer's parts: each ends where the next begins, and they are the same however the deltas were cut."""

from __future__ import annotations

from octavo.engine.stop_strings import StopStrings
from octavo.server.answer_parts import AnswerParts, parts_of
from octavo.server.choice_reader import CallPiece
from octavo.server.generation import ChoiceDelta, joined


def deltas() -> list[ChoiceDelta]:
    first, second = CallPiece(0, "", "id0", "f"), CallPiece(1, "", "id1", "g")
    return [
        ChoiceDelta(0, reasoning="I th"),
        ChoiceDelta(0, reasoning="ink.", text="So"),
        ChoiceDelta(0, text=": ", calls=[first]),
        ChoiceDelta(0, calls=[CallPiece(0, '{"a"'), CallPiece(0, ": 1}"), second]),
        ChoiceDelta(0, calls=[CallPiece(1, "{}")]),
        ChoiceDelta(0, finish_reason="tool_calls"),
    ]


def test_parts_follow_each_other_and_all_of_them_end() -> None:
    cut = AnswerParts()
    changes = [change for delta in deltas() for change in cut.take(delta)]
    told = [(change.change, change.part.number) for change in changes if change.change != "grows"]
    assert told == [(name, number) for number in range(4) for name in ("begins", "ends")]
    for part in cut.parts:
        assert part.text == "".join(change.text for change in changes if change.part is part)


def test_a_whole_answer_has_the_parts_of_its_stream() -> None:
    cut = AnswerParts()
    for delta in deltas():
        list(cut.take(delta))
    assert parts_of(joined(deltas())) == cut.parts
    assert [(part.kind, part.text, part.name, part.call_id) for part in cut.parts] == [
        ("reasoning", "I think.", "", ""),
        ("text", "So: ", "", ""),
        ("call", '{"a": 1}', "f", "id0"),
        ("call", "{}", "g", "id1"),
    ]


def test_words_behind_a_call_are_a_part_of_their_own_in_a_stream() -> None:
    cut = AnswerParts()
    for delta in (*deltas()[:-1], ChoiceDelta(0, text="Done.", finish_reason="tool_calls")):
        list(cut.take(delta))
    assert [part.kind for part in cut.parts] == ["reasoning", "text", "call", "call", "text"]


def test_an_answer_that_says_nothing_has_no_parts() -> None:
    assert parts_of(ChoiceDelta(0, finish_reason="stop")) == []


def test_the_stop_string_that_cut_is_told() -> None:
    stops = StopStrings(["later", "x", "soon"])
    assert stops.feed("so") == ("", False) and stops.found is None
    assert stops.feed("on later") == ("", True) and stops.found == "soon"
