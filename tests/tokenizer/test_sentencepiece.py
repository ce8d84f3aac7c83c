"""SentencePiece merges against a plain definition, and the words they are cut into."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.sentencepiece import SentencePieceModel

PIECES = ["▁", "a", "b", "c", "aa", "ab", "ba", "aba", "bb", "▁a", "▁ab", "▁▁", "b▁", "ca", "cab", "aab", "bab"]
SCORES = [0.0, -9.0, -9.0, -9.0, -3.0, -2.0, -2.0, -1.0, -4.0, -5.0, -1.0, -6.0, -7.0, -3.0, -3.0, -2.5, -2.5]
VOCABULARY = {piece: index for index, piece in enumerate(PIECES)}
BYTE_IDS = {byte: 100 + byte for byte in range(256)}


def model(pieces: dict[str, int] | None = None, byte_ids: dict[int, int] | None = None) -> SentencePieceModel:
    return SentencePieceModel(pieces or VOCABULARY, SCORES, BYTE_IDS if byte_ids is None else byte_ids, 99)


def merged_by_definition(text: str, pieces: dict[str, int]) -> list[str]:
    """Joins the best-scoring pair of neighbours, the leftmost among equals, until none is a piece."""
    symbols = list(text)
    while True:
        pairs = [
            (-SCORES[pieces[left + right]], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in pieces
        ]
        if not pairs:
            return symbols
        _, place = min(pairs)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


@given(text=st.text(alphabet="abc▁", max_size=24))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_merges_follow_the_definition_on_any_text(text: str) -> None:
    expected = [VOCABULARY[symbol] for symbol in merged_by_definition(text, VOCABULARY)]
    assert model().encode(text) == expected


@given(text=st.text(alphabet="abc▁", max_size=24))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_merges_follow_the_definition_where_words_can_be_cut(text: str) -> None:
    pieces = {piece: index for piece, index in VOCABULARY.items() if piece != "b▁"}
    assert model(pieces).encode(text) == [pieces[symbol] for symbol in merged_by_definition(text, pieces)]


def test_among_equal_scores_the_leftmost_pair_is_merged() -> None:
    assert model().encode("aaa") == [VOCABULARY["aa"], VOCABULARY["a"]]


def test_a_character_without_a_piece_becomes_its_bytes_or_the_unknown_token() -> None:
    assert model().encode("aé") == [VOCABULARY["a"], 100 + 0xC3, 100 + 0xA9]
    assert model(byte_ids={0xC3: 5}).encode("é") == [99]


def test_a_long_text_without_spaces_is_encoded_in_reasonable_time() -> None:
    assert len(model().encode("ab" * 20_000)) > 1  # quadratic work would take minutes
