"""What each parser makes of an answer, at every way to cut it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readings import Call, pieces_of, read_calls
from tool_answers import ANSWERS, TEXTS

from octavo.server.parsers.detect import parser_of
from octavo.server.parsers.events import Arguments, CallStart, Text
from octavo.server.parsers.forms import FORMS


@pytest.mark.parametrize(("form", "text", "content", "calls"), ANSWERS, ids=lambda value: str(value)[:40])
def test_calls_are_read_the_same_at_every_cut(form: str, text: str, content: str, calls: list[Call]) -> None:
    for cuts in [(), range(1, len(text)), *((cut,) for cut in range(1, len(text)))]:
        assert read_calls(form, pieces_of(text, cuts)) == (content, calls), cuts


@pytest.mark.parametrize(("form", "text"), TEXTS, ids=lambda value: str(value)[:40])
def test_what_is_no_call_stays_text_to_the_last_character(form: str, text: str) -> None:
    for cuts in [(), range(1, len(text)), *((cut,) for cut in range(1, len(text)))]:
        assert read_calls(form, pieces_of(text, cuts)) == (text, []), cuts


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, *_ in ANSWERS], ids=lambda value: value[:40])
def test_an_answer_that_breaks_off_anywhere_reads_the_same_in_one_piece_and_by_characters(form: str, text: str) -> None:
    for end in range(len(text)):
        assert read_calls(form, [text[:end]]) == read_calls(form, list(text[:end]))


def test_two_cuts_at_all_places_change_nothing() -> None:
    form, text = ANSWERS[1][0], ANSWERS[1][1][-60:]
    expected = read_calls(form, [text])
    for cuts in itertools.combinations(range(1, len(text)), 2):
        assert read_calls(form, pieces_of(text, cuts)) == expected


# Parts of which answers are made, and broken answers, in any order.
PARTS = [
    *{word for form in FORMS.values() for word in form.words},
    *'{}[]":,;()=\\ \n',
    "name",
    "arguments",
    "parameters",
]
PARTS += [
    '"f"',
    "f",
    '{"name": "f", "arguments": {',
    '"a": 1',
    "}}",
    "tool_code\n",
    "f(a=1)",
    "<function=f>",
    "<parameter=a>",
    "x",
    "é",
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(PARTS), max_size=14), st.data())
def test_any_text_is_read_the_same_however_it_is_cut(form: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = read_calls(form, [text])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    assert read_calls(form, pieces_of(text, cuts)) == whole == read_calls(form, list(text))
    if not whole[1]:
        assert whole[0] == text


@pytest.mark.parametrize("form", ["hermes", "mistral", "llama3"])
def test_arguments_are_told_as_they_come(form: str) -> None:

    text = next(text for name, text, *_ in ANSWERS if name == form and "get_weather" in text)
    parser = parser_of(FORMS[form], {"f": {}, "get_weather": {}})
    told = [event for char in text for event in parser.push(char) if isinstance(event, Arguments)]
    assert len(told) > 5


def test_a_name_is_told_before_its_arguments_are_complete() -> None:

    parser = parser_of(FORMS["hermes"], {"f": {}})
    assert CallStart(0, "f") in parser.push('<tool_call>{"name": "f", "arguments": {')


def test_text_that_cannot_become_a_call_is_not_held_back() -> None:

    parser = parser_of(FORMS["hermes"], {"f": {}})
    assert parser.push("a <tool") == [Text("a")]
    assert parser.push("s") == [Text(" <tools")]


def test_a_long_answer_is_read_in_linear_time() -> None:
    text = "<tool_call" * 20_000
    assert read_calls("hermes", [text]) == (text, [])
    nested = '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 100
    content, calls = read_calls("hermes", [nested])
    assert content == "" and calls[0][0] == "f"
