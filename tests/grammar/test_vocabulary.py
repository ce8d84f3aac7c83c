"""Vocabularies of all kinds can spell what a grammar asks for, and cut it as their tokenizer would."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequest
from octavo.grammar.check_process import check
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.vocabulary import _Vocabulary
from octavo.grammar_spec import GrammarSpec
from octavo.tokenizer import Tokenizer
from tests.conftest import weights_path
from tests.tokenizer.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

KINDS = {"byte level": byte_level_metadata, "sentencepiece": sentencepiece_metadata}
TEXTS = ("leading the banana", " x", '{"the": "é🚀"}', "<s>", "naïve\n\nGröße")


def written(tokenizer: Tokenizer, spec: GrammarSpec, seed: int, vocab_size: int) -> str:
    """One answer, drawn evenly from the masks."""
    matcher = GrammarCompiler(tokenizer, vocab_size, check).compile(spec).result().matcher()
    row = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    draw, ids = random.Random(seed), []
    for _ in range(300):
        matcher.fill(row)
        assert matcher.error is None
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        assert max(allowed) < tokenizer.vocab_size, "an id that no token has"
        if not tokenizer.eos_token_ids.isdisjoint(allowed):
            break
        ids.append(draw.choice(allowed))
        assert ids[-1] not in tokenizer.control_token_ids
        matcher.note(ids[-1])
    detokenizer = tokenizer.detokenizer(keep_leading_space=True)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_choice_is_written_word_for_word_even_if_it_looks_like_control_tokens(kind: str, text: str) -> None:
    tokenizer = Tokenizer.from_gguf(KINDS[kind]())
    for seed in range(5):
        assert written(tokenizer, GrammarSpec.choice([text]), seed, tokenizer.vocab_size + 13) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_cut_into_tokens_of_the_very_same_bytes(kind: str, text: str) -> None:
    tokenizer = Tokenizer.from_gguf(KINDS[kind]())
    vocabulary = _Vocabulary(tokenizer, tokenizer.vocab_size, sorted(tokenizer.eos_token_ids))
    for given in (text, text.encode(), text.encode()[:-1]):
        data = given.encode() if isinstance(given, str) else given
        assert b"".join(map(tokenizer.token_bytes, vocabulary(given))) == data
    plain = tokenizer.encode(text, add_special_tokens=False)
    if b"".join(map(tokenizer.token_bytes, plain)) == text.encode():
        assert vocabulary(text) == plain


def test_a_model_without_an_end_of_turn_cannot_be_held_to_a_grammar() -> None:
    metadata: dict[str, Any] = byte_level_metadata(eos_token_id=None, token_type=None, bos_token_id=None)
    metadata["tokenizer.ggml.tokens"] = [
        token if not token.startswith("<|") else f"[{number}]"
        for number, token in enumerate(metadata["tokenizer.ggml.tokens"])
    ]
    tokenizer = Tokenizer.from_gguf(metadata)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, check)
    assert not tokenizer.eos_token_ids and not compiler.is_possible
    with pytest.raises(InvalidRequest, match="no token that ends a text"):
        compiler.compile(GrammarSpec.regex("a")).result()


@pytest.mark.weights
@pytest.mark.parametrize("alias", ["smollm2", "gemma3", "qwen05"])
def test_real_vocabularies_write_json(alias: str) -> None:
    from octavo.models.loaders import open_checkpoint

    checkpoint = open_checkpoint(weights_path(alias))
    schema = {"type": "object", "properties": {"é ü": {"enum": ["日本語", "x y"]}}, "required": ["é ü"]}
    spec = GrammarSpec.json_schema({**schema, "additionalProperties": False})
    text = written(checkpoint.tokenizer(), spec, 1, checkpoint.config.vocab_size)
    assert json.loads(text)["é ü"] in ("日本語", "x y")
