"""Tokenizers built from GGUF metadata: flags, defaults, special tokens, refusals."""

from __future__ import annotations

import logging

import pytest
from tiny_tokenizers import byte_level_metadata, id_of, sentencepiece_metadata

from octavo.errors import InvalidRequest, LoadError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.pretokenizers import PRE_TOKENIZERS
from octavo.tokenizer.vocabulary import TokenKind


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_named_pre_tokeniser_keeps_all_of_the_text(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre=pre))
    text = "->(x):\n\t12345  naïve 안녕 I'M you're\r\n  Don't 3.14 🚀CamelCase snake_case 你好。"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["12345", "'s", " ->", " we", "'", "LL", "\n\n"]),
        ("qwen2", ["1", "2", "3", "4", "5", "'s", " ->", " we", "'LL", "\n\n"]),
        ("llama-bpe", ["123", "45", "'s", " ->", " we", "'LL", "\n\n"]),
        ("smollm", ["1", "2", "3", "4", "5", "'s", " ->", " we", "'", "LL", "\n\n"]),
        ("gpt-4o", ["123", "45", "'s", " ->", " we'LL", "\n\n"]),
        ("deepseek-llm", ["1", "2", "3", "4", "5", "'", "s", " ->", " we", "'", "LL", "\n", "\n"]),
        ("falcon", ["123", "45", "'", "s", " ", "->", " we", "'", "LL", "\n\n"]),
    ],
)
def test_pre_tokenisers_cut_digits_contractions_and_line_ends_each_in_their_way(pre: str, words: list[str]) -> None:
    cuts = PRE_TOKENIZERS[pre].build().pre_tokenize_str("12345's -> we'LL\n\n")
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in cuts] == words


@pytest.mark.parametrize("pre", ["bert-bge", "default", "no-such", None])
def test_an_unknown_or_missing_pre_tokeniser_is_refused_with_its_name_and_the_supported_ones(pre: str | None) -> None:
    named = "names no pre-tokeniser" if pre is None else repr(pre)
    with pytest.raises(LoadError, match=named) as refusal:
        Tokenizer.from_gguf(byte_level_metadata(pre=pre))
    assert "llama-bpe" in str(refusal.value) and "--force" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_force_takes_gpt_2_for_an_unknown_pre_tokeniser_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        forced = Tokenizer.from_gguf(byte_level_metadata(pre="no-such"), force=True)
    assert "'no-such'" in caplog.text
    text = "the 12345 fox"
    assert forced.encode(text) == Tokenizer.from_gguf(byte_level_metadata()).encode(text)


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", None])
def test_an_unsupported_tokenizer_model_is_refused_by_its_name(model: str | None) -> None:
    with pytest.raises(LoadError, match=f"tokenizer model {model!r}.*supported: gpt2, llama"):
        Tokenizer.from_gguf(byte_level_metadata(model=model))


@pytest.mark.parametrize("missing", ["tokens", "merges"])
def test_missing_parts_are_named(missing: str) -> None:
    with pytest.raises(LoadError, match=f"no tokenizer.ggml.{missing}"):
        Tokenizer.from_gguf(byte_level_metadata(**{missing: None}))


def test_parts_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(LoadError, match=r"token_type has 3 entries"):
        Tokenizer.from_gguf(byte_level_metadata(token_type=[1, 1, 1]))
    with pytest.raises(LoadError, match=r"eos_token_id is 999999, outside the vocabulary"):
        Tokenizer.from_gguf(byte_level_metadata(eos_token_id=999_999))
    with pytest.raises(LoadError, match=r"scores has 1 entries"):
        Tokenizer.from_gguf(sentencepiece_metadata(scores=[0.0]))


def test_begin_and_end_of_text_follow_the_flags_and_the_defaults_of_the_kind() -> None:
    plain, llama = byte_level_metadata(), sentencepiece_metadata()
    begin, end = plain["tokenizer.ggml.bos_token_id"], plain["tokenizer.ggml.eos_token_id"]
    core = Tokenizer.from_gguf(plain).encode("the")
    assert begin not in core and end not in core
    both = Tokenizer.from_gguf(byte_level_metadata(add_bos_token=True, add_eos_token=True))
    assert both.encode("the") == [begin, *core, end]
    assert both.encode("the", add_special_tokens=False) == core
    assert Tokenizer.from_gguf(byte_level_metadata(pre="llama-bpe")).encode("the") == [begin, *core]
    assert Tokenizer.from_gguf(llama).encode("the") == [1, id_of(llama, "▁the")]
    assert Tokenizer.from_gguf(llama).encode("") == [1]
    assert Tokenizer.from_gguf(sentencepiece_metadata(add_bos_token=False)).encode("the") == [id_of(llama, "▁the")]


def test_begin_of_text_is_never_doubled_by_a_text_that_begins_with_it() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(add_eos_token=True))
    assert tokenizer.encode("<s>the</s>", parse_special=True) == tokenizer.encode("the")
    assert tokenizer.encode("<s>", parse_special=True)[:2] == [1, 2]


def test_control_tokens_are_text_unless_parsed_and_user_defined_ones_always_match() -> None:
    metadata = byte_level_metadata()
    tokenizer = Tokenizer.from_gguf(metadata)
    start, call = id_of(metadata, "<|im_start|>"), id_of(metadata, "<tool_call>")
    text = "<|im_start|>the<tool_call>"
    assert start not in tokenizer.encode(text) and call in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    parsed = tokenizer.encode(text, parse_special=True)
    assert parsed[0] == start and parsed[-1] == call


def test_sentencepiece_merges_never_build_a_control_token_out_of_text() -> None:
    metadata = sentencepiece_metadata()  # has the pieces "<s" and "s>", one merge away from "<s>"
    assert Tokenizer.from_gguf(metadata).encode("<s>")[1:] != [1]
    assert 1 not in Tokenizer.from_gguf(metadata).encode("a<s>")[1:]


def test_byte_level_merges_never_build_a_control_token_out_of_text() -> None:
    metadata = byte_level_metadata()
    the = id_of(metadata, "the")
    metadata["tokenizer.ggml.token_type"][the] = int(TokenKind.CONTROL)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert the not in tokenizer.encode("the them")
    assert the in tokenizer.encode("the them", parse_special=True)


def test_the_space_at_the_front_comes_after_every_special_token_and_only_there() -> None:
    metadata = sentencepiece_metadata()
    tokenizer = Tokenizer.from_gguf(metadata)
    the, tool = id_of(metadata, "▁the"), id_of(metadata, "<tool>")
    assert tokenizer.encode("the<tool>the the", add_special_tokens=False) == [the, tool, the, the]
    bare = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False))
    assert bare.encode("the", add_special_tokens=False) != [the]


def test_all_end_of_turn_ids_are_found_by_key_and_by_text() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.eot_token_id"] = id_of(metadata, "<|im_start|>")
    expected = {id_of(metadata, text) for text in ("<|endoftext|>", "<|im_end|>", "<|im_start|>")}
    assert Tokenizer.from_gguf(metadata).eos_token_ids == expected


def test_an_end_of_turn_mark_that_the_file_calls_ordinary_is_a_control_token_all_the_same() -> None:
    metadata = byte_level_metadata()
    end = id_of(metadata, "<|im_end|>")
    metadata["tokenizer.ggml.token_type"][end] = int(TokenKind.USER_DEFINED)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert end in tokenizer.eos_token_ids and end not in tokenizer.encode("<|im_end|>")
    assert tokenizer.decode([end]) == ""


def test_the_harmony_end_of_message_does_not_end_the_turn() -> None:
    metadata = byte_level_metadata()
    for text in ("<|end|>", "<|return|>", "<|call|>"):
        metadata["tokenizer.ggml.tokens"].append(text)
        metadata["tokenizer.ggml.token_type"].append(int(TokenKind.CONTROL))
    ends = Tokenizer.from_gguf(metadata).eos_token_ids
    assert id_of(metadata, "<|return|>") in ends and id_of(metadata, "<|call|>") in ends
    assert id_of(metadata, "<|end|>") not in ends


def test_an_unpaired_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"U\+D83D at character 3"):
        Tokenizer.from_gguf(byte_level_metadata()).encode("abc\ud83d")
