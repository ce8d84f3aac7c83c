"""A text that is far too long is told without encoding it: the bound is never above the tokens that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_metadata, byte_level_pipeline, sentencepiece_metadata
from tokenizers import AddedToken, normalizers, pre_tokenizers

from octavo.errors import PromptTooLong
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.vocabulary import BYTE_LEVEL_ALPHABET

COMBINED = "\u03b1\u0313\u0301\u0345"  # one character once composed
TEXTS = ("\a\u0601", "the quick fox", " " * 40, COMBINED * 30, "안녕하세요 🚀", "\n\n\n", "the<tool> leading", "")


def directory(folder: Path, **steps: Any) -> Tokenizer:
    pipeline = byte_level_pipeline()
    pipeline.add_special_tokens(["<|endoftext|>"])
    for name, step in steps.items():
        setattr(pipeline, name, step)
    folder.mkdir(exist_ok=True)
    pipeline.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_directory(folder)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return [
        Tokenizer.from_gguf(byte_level_metadata()),
        Tokenizer.from_gguf(sentencepiece_metadata()),
        directory(folder / "plain"),
        directory(folder / "composed", normalizer=normalizers.NFC()),
    ]


@given(st.lists(st.sampled_from(TEXTS) | st.text(max_size=20), max_size=20).map("".join))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_there_are_never_fewer_tokens_than_the_bound(several: list[Tokenizer], text: str) -> None:
    for tokenizer in several:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_a_long_text_has_a_bound_worth_having(several: list[Tokenizer]) -> None:
    for tokenizer in several:
        assert tokenizer.least_tokens("x" * 1_000_000) > 5_000


@pytest.mark.parametrize(
    "steps",
    [
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.NFKC()},
        {"normalizer": normalizers.Replace("    ", " ")},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])},
        {"pre_tokenizer": pre_tokenizers.Split(" ", "removed")},
    ],
    ids=lambda steps: str(next(iter(steps.values())))[:30],
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(tmp_path: Path, steps: dict[str, Any]) -> None:
    assert directory(tmp_path / "d", **steps).least_tokens(" " * 1_000_000) == 0


def test_tokens_that_swallow_white_space_leave_no_bound(tmp_path: Path) -> None:
    pipeline = byte_level_pipeline()
    pipeline.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    pipeline.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_directory(tmp_path).least_tokens("x" * 1_000_000) == 0
    swallowing = Tokenizer.from_gguf(byte_level_metadata() | {"general.name": "phi-3"})
    assert swallowing.least_tokens("x" * 1_000_000) == 0


def test_characters_that_no_token_has_do_not_count(tmp_path: Path) -> None:
    content = json.loads(byte_level_pipeline().to_str())
    del content["model"]["vocab"][BYTE_LEVEL_ALPHABET[7]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.least_tokens("\a" * 1_000_000) == len(tokenizer.encode("\a" * 10)) == 0
    assert tokenizer.least_tokens("x" * 1_000_000) > 5_000


def test_a_conversation_that_must_be_too_long_is_told_before_it_is_encoded() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    messages = [{"role": "user", "content": "x" * 100_000}]
    with pytest.raises(PromptTooLong, match=r"at least [0-9]+ tokens; shorten it to at most 50") as caught:
        tokenizer.encode_chat(messages, most_tokens=50)
    assert 50 < caught.value.num_tokens <= len(tokenizer.encode_chat(messages))
    assert tokenizer.encode_chat(messages, most_tokens=200_000) == tokenizer.encode_chat(messages)
