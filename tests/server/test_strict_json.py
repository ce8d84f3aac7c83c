"""Bodies that are not one strict JSON object are refused with one line, quickly, and never crash."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import HttpError
from octavo.server.strict_json import MAX_CONTAINERS, MAX_DEPTH, MAX_MEMBERS, MAX_VALUES, read_object

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_TEXT, _VALUES, max_size=4), st.booleans())
def test_every_json_object_is_read_as_json_reads_it(value: dict[str, Any], ascii_only: bool) -> None:
    assert read_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b"null", "null"),
        (b"[]", "array"),
        (b"42", "number"),
        (b"4.2", "number"),
        (b'"text"', "string"),
        (b"true", "true or false"),
        (b'{"a": 1', "line 1, column"),
        (b'{"a": 1} x', "Extra data"),
        (b"{'a': 1}", "line 1"),
        (b'{"a": 1,}', "line 1"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "twice"),
        (b'{"x": {"a": 1, "a": 1}}', "twice"),
        (b'{"a": "\\ud800"}', "U+D800"),
        (b'{"a": ["\\uDFFF!"]}', "U+DFFF"),
        (b'{"\\udc00": 1}', "U+DC00"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "byte-order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b'{"a": "line\nfeed"}', "control character"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_strict_json_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(HttpError) as caught:
        read_object(body)
    assert caught.value.status == 400 and reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert read_object(b'{"a": "\\ud83d\\ude80"}') == {"a": "\N{ROCKET}"}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("closed", [False, True])
def test_a_hundred_thousand_brackets_are_refused_in_no_time(opening: bytes, closed: bool) -> None:
    body = b'{"a":' + opening * 100_000 + (b"]" * 100_000 if closed else b"")
    begun = time.perf_counter()
    with pytest.raises(HttpError, match="nested more than"):
        read_object(body)
    assert time.perf_counter() - begun < 1.0


def test_depth_is_counted_outside_of_strings_only() -> None:
    text = "[{" * 1000 + '\\"['
    assert read_object(json.dumps({"a": text, "b": [text]}).encode()) == {"a": text, "b": [text]}
    deepest = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert read_object(deepest)
    with pytest.raises(HttpError, match="nested"):
        read_object(b'{"b":' + deepest + b"}")


def test_many_members_of_one_object_are_refused() -> None:
    members = {str(index): index for index in range(MAX_MEMBERS)}
    assert read_object(json.dumps(members).encode()) == members
    with pytest.raises(HttpError, match=f"{MAX_MEMBERS + 1} members"):
        read_object(json.dumps({**members, "one more": 1}).encode())


@pytest.mark.parametrize("unit", [b'\\"', b'"', b"\\", b'"\\', b'\\"[', b'"",'])
@pytest.mark.parametrize("start", [b'{"a":[' + b"[]," * 65, b'{"a":"'])
def test_strings_that_never_end_are_looked_through_once(start: bytes, unit: bytes) -> None:
    """A search that began anew at every quotation mark would take hours."""
    with pytest.raises(HttpError) as caught:
        read_object(start + unit * 500_000)
    assert caught.value.status == 400


@pytest.mark.parametrize("item", [b"[1]", b"{}"])
def test_more_arrays_and_objects_than_are_read_quickly_are_refused(item: bytes) -> None:
    read_object(b'{"a":[' + b",".join([item] * (MAX_CONTAINERS - 2)) + b"]}")
    with pytest.raises(HttpError, match=f"{MAX_CONTAINERS + 1} arrays and objects"):
        read_object(b'{"a":[' + b",".join([item] * (MAX_CONTAINERS - 1)) + b"]}")


def test_more_values_than_are_read_quickly_are_refused_and_commas_in_strings_are_none() -> None:
    assert read_object(b'{"a":"' + b"," * (MAX_VALUES + 1) + b'"}')
    read_object(b'{"a":[1' + b",1" * (MAX_VALUES - 1) + b"]}")
    with pytest.raises(HttpError, match=f"at most {MAX_VALUES}"):
        read_object(b'{"a":[1' + b",1" * MAX_VALUES + b"]}")


@pytest.mark.parametrize(
    "escapes", [r"\\ud83d", r"\ud83d\ude80\\", r"\n\ud83d\ude80", r"\\\ud83d\ude80", r"\ud7ff\ue000"]
)
def test_escapes_that_are_no_unpaired_surrogates_are_read(escapes: str) -> None:
    assert read_object(f'{{"a": "{escapes}"}}'.encode())["a"] == json.loads(f'"{escapes}"')


@pytest.mark.parametrize(
    "escapes", [r"\ud83d\ud83d\ude80", r"\ude80\ud83d", r"\\\ud83d", r"\ud83d\\ude80", r"\ud83d \ude80"]
)
def test_escapes_that_are_are_refused(escapes: str) -> None:
    with pytest.raises(HttpError, match="unpaired surrogate U\\+D"):
        read_object(f'{{"a": "{escapes}"}}'.encode())
