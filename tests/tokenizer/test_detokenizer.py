"""Streaming: joined deltas equal the full decode for any ids, and no character is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_metadata, id_of, sentencepiece_metadata

from octavo.errors import InvalidRequest
from octavo.tokenizer import Tokenizer

BYTE_LEVEL = byte_level_metadata()
LLAMA = sentencepiece_metadata()
GEMMA = sentencepiece_metadata(add_space_prefix=False)
TOKENIZERS = {
    "byte-level": Tokenizer.from_gguf(BYTE_LEVEL),
    "llama": Tokenizer.from_gguf(LLAMA),
    "gemma": Tokenizer.from_gguf(GEMMA),
}


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_joined_deltas_equal_the_full_decode_for_any_ids(kind: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=24))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(tokenizer, ids, skip_special_tokens=skip)) == whole


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(max_size=40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_text_survives_encoding_and_streaming_without_replacement_characters(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    deltas = streamed(tokenizer, ids)
    assert "".join(deltas) == text
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


def test_a_character_in_several_tokens_comes_out_whole_with_the_last_of_them() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [id_of(LLAMA, f"<0x{byte:02X}>") for byte in "🚀".encode()]
    assert streamed(tokenizer, ids) == ["", "", "", "🚀", ""]


def test_a_character_cut_by_the_end_is_flushed_once_at_the_end() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [id_of(LLAMA, f"<0x{byte:02X}>") for byte in "🚀".encode()[:3]]
    assert streamed(tokenizer, ids) == ["", "", "", "\ufffd"]


def test_invalid_bytes_become_replacement_characters_and_later_text_is_sound() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [id_of(LLAMA, "<0xFF>"), id_of(LLAMA, "<0xF0>"), id_of(LLAMA, "▁the")]
    assert "".join(streamed(tokenizer, ids)) == "\ufffd\ufffd the"


@pytest.mark.parametrize(("kind", "expected"), [("llama", " leading x"), ("gemma", "  leading x")])
def test_exactly_one_leading_space_is_stripped_and_only_where_encoding_adds_one(kind: str, expected: str) -> None:
    ids = [id_of(LLAMA, piece) for piece in ("▁", "▁leading", "▁x")]
    assert "".join(streamed(TOKENIZERS[kind], ids)) == expected == TOKENIZERS[kind].decode(ids)


def test_byte_level_text_keeps_its_real_leading_space() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("  the")
    assert "".join(streamed(tokenizer, ids)) == "  the"


def test_control_tokens_are_skipped_or_shown_as_asked() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("<|im_start|>the<tool_call>", parse_special=True)
    assert tokenizer.decode(ids) == "the<tool_call>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the<tool_call>"


def test_padding_ids_past_the_vocabulary_are_nothing_and_negative_ones_are_refused() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert tokenizer.decode([tokenizer.vocab_size, 10**9]) == ""
    assert tokenizer.token_text(tokenizer.vocab_size) == ""
    with pytest.raises(InvalidRequest, match="token id -1 is negative"):
        tokenizer.decode([-1])


def test_token_bytes_are_the_raw_bytes_even_of_half_a_character() -> None:
    byte_level, llama = TOKENIZERS["byte-level"], TOKENIZERS["llama"]
    ids = byte_level.encode("🦙", add_special_tokens=False)
    assert len(ids) > 1
    assert b"".join(map(byte_level.token_bytes, ids)) == "🦙".encode()
    assert llama.token_bytes(id_of(LLAMA, "<0x80>")) == b"\x80"
    assert llama.token_bytes(id_of(LLAMA, "▁the")) == b" the"
    assert llama.token_text(id_of(LLAMA, "▁the")) == "▁the"


def test_a_long_stream_costs_the_same_per_token_as_a_short_one() -> None:
    tokenizer = TOKENIZERS["llama"]
    detokenizer = tokenizer.detokenizer()
    ids = [id_of(LLAMA, "▁the")] * 200_000  # quadratic work would take minutes
    assert len("".join(map(detokenizer.push, ids))) == 4 * len(ids) - 1
