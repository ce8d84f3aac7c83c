"""The output processor against a byte-level detokeniser: text, stops, finish reasons, and what each delta shows."""

from __future__ import annotations

import codecs
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.output_processor import OutputProcessor
from octavo.engine.stop_strings import StopStrings
from octavo.outputs import TextDelta
from octavo.sampling_params import SamplingParams

EOS, END_OF_TURN, CONTROL = 256, 257, 258
ENDS = frozenset({EOS, END_OF_TURN})
COUNTING = "4, 5, 6, 7, 8, 9, 10, 11, 12 and so on"


class ByteDetokenizer:
    """Ids below 256 are bytes, others are special and show nothing. Incomplete UTF-8 waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id])) if token_id < 256 else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """Id i is the i-th of the given pieces of text."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def finish(self) -> str:
        return ""


def processor(max_new_tokens: int = 1000, **params: object) -> OutputProcessor:
    return OutputProcessor(ByteDetokenizer(), ENDS, SamplingParams(**params), max_new_tokens)  # type: ignore[arg-type]


def run_pieces(pieces: list[str], **params: object) -> tuple[OutputProcessor, list[TextDelta]]:
    """Push the pieces as one token each until the request ends; `max_new_tokens` is their number."""
    settings_ = SamplingParams(**params)  # type: ignore[arg-type]
    one = OutputProcessor(PieceDetokenizer(pieces), ENDS, settings_, len(pieces))
    return one, push_until_end(one, range(len(pieces)))


def push_until_end(one: OutputProcessor, token_ids: bytes | range | list[int]) -> list[TextDelta]:
    deltas: list[TextDelta] = []
    for token_id in token_ids:
        deltas.append(one.push(token_id))
        if one.finish_reason is not None:
            break
    assert "".join(d.text for d in deltas) == one.text
    assert [t for d in deltas for t in d.token_ids] == one.token_ids
    assert all(d.finish_reason is None for d in deltas[:-1])
    return deltas


def cut_randomly(text: str, seed: int, longest: int) -> list[str]:
    """Pieces of 0 to `longest` characters that join to `text`."""
    rng = random.Random(seed)
    pieces: list[str] = []
    position = 0
    while position < len(text):
        size = rng.randint(0, longest)
        pieces.append(text[position : position + size])
        position += size
    return pieces


def cut_before_first(text: str, stops: list[str]) -> str | None:
    """The text before the earliest match of any stop string, or None if there is none."""
    starts = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(starts)] if starts else None


def longest_possible_hold(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    sizes = [k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])]
    return max(sizes, default=0)


# --- stop strings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 21))
def test_every_stop_string_of_the_text_cuts_it_at_the_first_match_however_tokens_fall(length: int) -> None:
    for start in range(len(COUNTING) - length + 1):
        stop = COUNTING[start : start + length]
        for seed in range(4):
            pieces = cut_randomly(COUNTING, seed + 31 * start, longest=1 + seed * 2)
            one, deltas = run_pieces(pieces, stop=[stop])
            assert one.finish_reason == "stop"
            assert one.text == COUNTING[: COUNTING.index(stop)]
            assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("length", range(1, 21))
def test_a_stop_string_that_is_completed_by_nothing_changes_no_text(length: int) -> None:
    for start in range(len(COUNTING) - length + 1):
        stop = COUNTING[start : start + length] + "#"
        one, _ = run_pieces(cut_randomly(COUNTING, start, longest=4), stop=[stop])
        assert one.finish_reason == "length" and one.text == COUNTING


def test_held_text_is_exactly_what_can_still_become_a_stop_string() -> None:
    stops = ["6, 7, 8, 9", "7, 9", "and so on!"]
    one = processor(stop=stops)
    for count, byte in enumerate(COUNTING.encode(), start=1):
        one.push(byte)
        if one.finish_reason is not None:
            assert one.text == "4, 5, "
            return
        seen = COUNTING[:count]
        assert one.text == seen[: len(seen) - longest_possible_hold(seen, stops)]
    pytest.fail("the stop string was not seen")


def test_text_that_looked_like_a_stop_string_is_released_with_the_token_that_refutes_it() -> None:
    _, deltas = run_pieces(["1, ", "6, ", "7, ", "x", "y"], stop=["6, 7, 8, 9"])
    assert [d.text for d in deltas] == ["1, ", "", "", "6, 7, x", "y"]


def test_a_failed_match_keeps_holding_the_part_that_begins_another_one() -> None:
    _, deltas = run_pieces(["aa", "ab", "aab", "!"], stop=["aabaaa"])
    assert [d.text for d in deltas] == ["", "a", "aab", "aab!"]


@pytest.mark.parametrize("stops", [["6, 7", "6, 7, 8, 9"], ["6, 7, 8, 9", "6, 7"]])
@pytest.mark.parametrize("longest", [1, 2, 3, 40])
def test_of_two_stop_strings_with_one_start_order_and_length_do_not_matter(stops: list[str], longest: int) -> None:
    for seed in range(20):
        one, _ = run_pieces(cut_randomly(COUNTING, seed, longest), stop=stops)
        assert (one.text, one.finish_reason) == ("4, 5, ", "stop")


@pytest.mark.parametrize("stops", [["bc", "abcd"], ["abcd", "bc"]])
def test_of_two_matches_in_one_token_the_earliest_start_cuts(stops: list[str]) -> None:
    one, _ = run_pieces(["x", "abcde"], stop=stops)
    assert one.text == "x"


def test_a_stop_string_cuts_at_its_first_match_when_it_occurs_twice_in_a_token() -> None:
    one, _ = run_pieces(["x.y.z"], stop=["."])
    assert one.text == "x"


def test_overlapping_repeats_are_matched_at_the_first_place() -> None:
    one, _ = run_pieces(list("xababac"), stop=["abac", "aba"])
    assert one.text == "x"


def test_a_stop_string_may_be_the_whole_text() -> None:
    one, deltas = run_pieces(["He", "llo"], stop=["Hello"])
    assert one.text == "" and one.finish_reason == "stop" and [d.text for d in deltas] == ["", ""]


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    one, _ = run_pieces(["a", "b"], stop=["b"])
    assert (one.text, one.finish_reason) == ("a", "stop")


def test_a_stop_string_of_many_byte_characters_cuts_between_characters() -> None:
    one = processor(stop=["🙂🙃"])
    push_until_end(one, "ab🙂é🙂🙃z".encode())
    assert (one.text, one.finish_reason) == ("ab🙂é", "stop")


@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_character_at_a_time_the_text_ends_where_the_first_complete_stop_string_starts(
    text: str, stops: list[str]
) -> None:
    seen, expected, reason = "", text, "length"
    for character in text:
        seen += character
        cut = cut_before_first(seen, stops)
        if cut is not None:
            expected, reason = cut, "stop"
            break
    if not text:
        return
    one, _ = run_pieces(list(text), stop=stops)
    assert (one.text, one.finish_reason) == (expected, reason)


@given(
    text=st.text(alphabet="abc", min_size=1, max_size=60),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
    seed=st.integers(0, 2**32),
    longest=st.integers(1, 8),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_whatever_the_tokens_no_delta_ever_shows_part_of_the_stop_string(
    text: str, stops: list[str], seed: int, longest: int
) -> None:
    pieces = cut_randomly(text, seed, longest)
    one, deltas = run_pieces(pieces, stop=stops)
    seen, shown = "", ""
    for piece, delta in zip(pieces, deltas, strict=False):
        seen += piece
        shown += delta.text
        cut = cut_before_first(seen, stops)
        if cut is not None:
            assert delta.finish_reason == "stop" and shown == cut
        elif delta.finish_reason is None:
            assert shown == seen[: len(seen) - longest_possible_hold(seen, stops)]
    assert shown == one.text


def test_time_is_linear_in_the_text_even_for_stop_strings_that_nearly_match() -> None:
    def seconds(repeats: int) -> float:
        matcher = StopStrings(["a" * 500 + "b", "a" * 250 + "c"])
        begin = time.perf_counter()
        for _ in range(repeats):
            matcher.feed("aaaa")
        return time.perf_counter() - begin

    short, long = min(seconds(1000) for _ in range(3)), min(seconds(8000) for _ in range(3))
    assert long < 8 * short * 5, f"8 times the text took {long / short:.1f} times as long"


# --- ids that end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_an_end_id_stops_is_counted_and_shows_nothing(end: int) -> None:
    one = processor()
    deltas = push_until_end(one, [*b"hi", end, *b"more"])
    assert (one.text, one.token_ids, one.finish_reason) == ("hi", [*b"hi", end], "stop")
    assert [d.finish_reason for d in deltas] == [None, None, "stop"]


def test_an_end_id_releases_held_text() -> None:
    one = processor(stop=["hi there"])
    deltas = push_until_end(one, [*b"hi", EOS])
    assert [d.text for d in deltas] == ["", "", "hi"]


def test_an_end_id_as_the_first_token_gives_empty_text_and_stop() -> None:
    one = processor(max_new_tokens=1)
    assert one.push(EOS) == TextDelta("", 0, "", (EOS,), "stop")


def test_with_ignore_eos_end_ids_are_counted_show_nothing_and_go_on() -> None:
    one = processor(max_new_tokens=5, ignore_eos=True)
    push_until_end(one, [*b"a", EOS, *b"b", END_OF_TURN, *b"c"])
    assert (one.text, one.finish_reason, len(one.token_ids)) == ("abc", "length", 5)


def test_a_stop_token_id_stops_even_with_ignore_eos_and_its_text_is_not_shown() -> None:
    one = processor(ignore_eos=True, stop_token_ids=[ord("!"), EOS])
    push_until_end(one, b"hey!")
    assert (one.text, one.token_ids, one.finish_reason) == ("hey", [*b"hey!"], "stop")
    other = processor(ignore_eos=True, stop_token_ids=[ord("!"), EOS])
    push_until_end(other, [*b"hey", EOS])
    assert other.finish_reason == "stop"


def test_special_ids_that_end_nothing_give_empty_deltas() -> None:
    one = processor()
    assert one.push(CONTROL) == TextDelta("", 0, "", (CONTROL,), None)


# --- length -----------------------------------------------------------------------------------------------------


def test_one_token_allowed_gives_exactly_one_token_and_length() -> None:
    one = processor(max_new_tokens=1)
    assert one.push(ord("a")) == TextDelta("", 0, "a", (ord("a"),), "length")
    assert one.token_ids == [ord("a")]


def test_length_releases_text_held_for_a_stop_string() -> None:
    one, deltas = run_pieces(["1 ", "6, ", "7, "], stop=["6, 7, 8, 9"])
    assert [d.text for d in deltas] == ["1 ", "", "6, 7, "] and one.finish_reason == "length"


def test_a_character_cut_by_length_comes_out_once_at_the_end() -> None:
    one = processor(max_new_tokens=6)
    deltas = push_until_end(one, "ok🙂".encode()[:5] + b"\xf0")
    assert "".join(d.text for d in deltas[:-1]) == "ok"
    assert deltas[-1].text.startswith("�") and one.text == ("ok🙂".encode()[:5] + b"\xf0").decode(errors="replace")


def test_whole_characters_of_many_tokens_never_show_a_replacement_character() -> None:
    text = "안녕하세요 🙂👩‍👩‍👧 你好"
    first, second = processor(), processor()
    shown: list[str] = []
    for byte in text.encode():  # two requests side by side, as in a batch
        shown += [first.push(byte).text, second.push(byte).text]
    assert not any("�" in piece for piece in shown)
    assert first.text == second.text == text


def test_invalid_utf8_becomes_replacement_characters_and_goes_on() -> None:
    one = processor(max_new_tokens=4)
    push_until_end(one, b"\xff\xfea\x80")
    assert one.text == "��a�"


def test_a_stop_string_completed_by_flushed_text_still_cuts() -> None:
    one = processor(max_new_tokens=2, stop=["�"])
    push_until_end(one, b"a\xf0")
    assert (one.text, one.finish_reason) == ("a", "stop")


# --- ending from outside, identity ------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_ending_from_outside_releases_held_text_and_gives_the_reason(reason: str) -> None:
    one = processor(stop=["abcd"])
    for byte in b"xab":
        one.push(byte)
    delta = one.abort(reason)  # type: ignore[arg-type]
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("ab", (), reason)
    assert one.text == "xab" and one.finish_reason == reason


def test_a_request_can_be_ended_before_its_first_token() -> None:
    one = processor()
    assert one.abort().finish_reason == "abort"
    assert one.text == "" and one.token_ids == []


def test_deltas_carry_the_request_and_the_choice() -> None:
    one = OutputProcessor(ByteDetokenizer(), ENDS, SamplingParams(), 10, index=3, request_id="r7")
    assert one.push(ord("a")) == TextDelta("r7", 3, "a", (ord("a"),), None)


def test_nothing_can_be_pushed_after_the_end() -> None:
    one = processor(max_new_tokens=1)
    one.push(ord("a"))
    with pytest.raises(AssertionError, match="has ended"):
        one.push(ord("b"))
    with pytest.raises(AssertionError, match="has ended"):
        one.abort()


# --- every way to end, once each --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_ids", "params", "reason"),
    [
        ([*b"ab", EOS], {}, "stop"),
        ([*b"ab."], {"stop": ["."]}, "stop"),
        ([*b"ab."], {"stop_token_ids": [ord(".")]}, "stop"),
        ([*b"abcdef"], {}, "length"),
    ],
    ids=["end id", "stop string", "stop id", "length"],
)
def test_exactly_one_delta_carries_a_finish_reason(
    token_ids: list[int], params: dict[str, object], reason: str
) -> None:
    one = processor(max_new_tokens=6, **params)
    deltas = push_until_end(one, token_ids)
    assert [d.finish_reason for d in deltas] == [None] * (len(token_ids) - 1) + [reason]
