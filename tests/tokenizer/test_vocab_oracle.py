"""Every pre-tokeniser for which an independent engine recorded ids gives the same ids."""

from __future__ import annotations

import pytest
from vocab_oracle import vocabulary_metadata, vocabulary_pairs

from octavo.errors import LoadError
from octavo.tokenizer import Tokenizer

VOCABULARIES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt",
    "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, Tokenizer.from_gguf(vocabulary_metadata(request.param))


def test_ids_match_the_recorded_ones_for_every_text(vocabulary: tuple[str, Tokenizer]) -> None:
    name, tokenizer = vocabulary
    for text, expected in vocabulary_pairs(name):
        assert tokenizer.encode(text, add_special_tokens=False) == expected, repr(text)


def test_every_recorded_text_survives_a_round_trip(vocabulary: tuple[str, Tokenizer]) -> None:
    name, tokenizer = vocabulary
    for text, ids in vocabulary_pairs(name):
        assert tokenizer.decode(ids) == text
        detokenizer = tokenizer.detokenizer()
        deltas = [detokenizer.push(token_id) for token_id in ids]
        assert "".join(deltas) + detokenizer.finish() == text
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("name", ["aquila", "gpt-neox"])
def test_a_file_that_names_no_pre_tokeniser_is_refused(name: str) -> None:
    with pytest.raises(LoadError, match=r"names no pre-tokeniser.*supported: .*qwen2"):
        Tokenizer.from_gguf(vocabulary_metadata(name))


@pytest.mark.parametrize(("name", "model"), [("bert-bge", "bert"), ("nomic-bert-moe", "t5")])
def test_a_kind_of_tokenizer_without_support_is_refused_by_its_name(name: str, model: str) -> None:
    with pytest.raises(LoadError, match=f"tokenizer model '{model}'.*supported: gpt2, llama, gemma4"):
        Tokenizer.from_gguf(vocabulary_metadata(name))
