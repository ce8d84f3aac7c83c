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
@pytest.mark.parametrize("cut", [False, True])
def test_an_answer_that_breaks_off_anywhere_reads_the_same_in_one_piece_and_by_characters(
    form: str, text: str, cut: bool
) -> None:
    for end in range(len(text)):
        assert read_calls(form, [text[:end]], cut=cut) == read_calls(form, list(text[:end]), cut=cut)


# Wherever one of these is cut off, it says what the whole one says beside calls, and its calls are beginnings of those.
CUT = [
    ("hermes", 'I see. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>\n<tool_call>{"name": "f"}</tool_call>'),
    ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"),
    ("mistral", 'Sure.[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"a": "b"}}]'),
    ("mistral", 'Sure.[TOOL_CALLS]get_weather[ARGS]{"a": "b"}'),
    ("lfm2", "<|tool_call_start|>[f(a='x'), get_weather()]<|tool_call_end|>"),
]


@pytest.mark.parametrize(("form", "text"), CUT, ids=lambda value: value[:40])
def test_a_call_that_the_length_cuts_off_leaves_none_of_its_text_in_the_content(form: str, text: str) -> None:
    content, calls = read_calls(form, [text])
    marker = FORMS[form].begins[0]
    for end in range(text.index(marker) + len(marker), len(text)):
        said, told = read_calls(form, [text[:end]], cut=True)
        assert said == content, text[:end]
        assert len(told) <= len(calls)
        for (name, arguments), (whole_name, whole) in zip(told, calls, strict=False):
            assert name == whole_name and whole.startswith(arguments.rstrip("}")), text[:end]


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("hermes", '{"name": "get_wea', ""),
        ("hermes", '{"name": "get_weather", "argum', ""),
        ("hermes", '[{"name": "f"', ""),
        ("generic", 'So:\n```json\n{"name": "f", "arg', "So:"),
        ("gemma", "```tool_code\nprint(get_weather(city='Bo", ""),
        ("hermes", '{"name": "Ada Lov', '{"name": "Ada Lov'),
        ("hermes", '{"name": "get weath', '{"name": "get weath'),
        ("hermes", '{"id": 5, "na', '{"id": 5, "na'),
        ("hermes", "a < b and <tool", "a < b and <tool"),
        ("hermes", "a < b and <tool_call", "a < b and"),
        ("generic", "```json\n{", "```json\n{"),
        ("hermes", "<tool_call>not JSON", "<tool_call>not JSON"),
    ],
)
def test_a_bare_beginning_that_the_length_cuts_off_is_left_out_only_if_it_names_a_tool(
    form: str, text: str, content: str
) -> None:
    for pieces in ([text], list(text)):
        assert read_calls(form, pieces, cut=True) == (content, [])
        assert read_calls(form, pieces) == (text, [])


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
@given(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(PARTS), max_size=14), st.booleans(), st.data())
def test_any_text_is_read_the_same_however_it_is_cut(
    form: str, parts: list[str], ends_by_length: bool, data: st.DataObject
) -> None:
    text = "".join(parts)
    whole = read_calls(form, [text], cut=ends_by_length)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    assert read_calls(form, pieces_of(text, cuts), cut=ends_by_length) == whole
    assert read_calls(form, list(text), cut=ends_by_length) == whole
    if not whole[1] and not ends_by_length:
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
