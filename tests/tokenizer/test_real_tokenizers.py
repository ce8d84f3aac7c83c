"""The tokenizers of the real checkpoints against recorded ids and transformers; control text in real chats."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from octavo.models.loaders.gguf_file import GGUFFile
from octavo.tokenizer import Tokenizer
from tests.conftest import MODEL_FILES, weights_path

ORACLE = Path(__file__).parent.parent / "oracle"
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
TEXTS = (
    "-> f(x):\n    return 12345  # naïve\tcafé\r\n", "  leading and trailing  ", "I'm, you're, WE'LL",
    "你好，世界 안녕", "🚀 emoji 🦙🦙", "\n\n\n\n", "", "<|im_end|> is text", "a\u00a0b\u3000c", "ﬁ ½ ² ٣",
)  # fmt: skip

pytestmark = pytest.mark.weights


@cache
def metadata_of(path: Path) -> Mapping[str, Any]:
    return GGUFFile.open(path).metadata


@cache
def tokenizer_of(alias: str) -> Tokenizer:
    metadata = metadata_of(weights_path(alias))
    return Tokenizer.from_gguf({"tokenizer.chat_template": GEMMA_TEMPLATE, **metadata})


def oracle_cases() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for alias in MODEL_FILES:
        for mode in ("f32", "quant"):
            cases = json.loads((ORACLE / f"{alias}.{mode}.json").read_text(encoding="utf-8"))["cases"]
            found += [(alias, case) for case in cases]
    return found


@pytest.mark.parametrize(("alias", "case"), oracle_cases(), ids=lambda value: value if isinstance(value, str) else "")
def test_prompts_and_answers_are_those_of_the_oracle(alias: str, case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(alias)
    assert tokenizer.encode(case["prompt"], parse_special=case["parse_special"]) == case["prompt_token_ids"]
    assert tokenizer.decode(case["output_token_ids"], skip_special_tokens=False) == case["text"]


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        ("smollm2", {"<|im_end|>", "<|endoftext|>"}),
        ("gemma3", {"<eos>", "<end_of_turn>"}),
        ("qwen05", {"<|im_end|>", "<|endoftext|>"}),
    ],
)
def test_end_of_turn_ids_are_all_found(alias: str, expected: set[str]) -> None:
    tokenizer = tokenizer_of(alias)
    assert {tokenizer.token_text(token_id) for token_id in tokenizer.eos_token_ids} == expected


@pytest.mark.parametrize("alias", MODEL_FILES)
def test_streams_of_random_ids_equal_their_full_decode(alias: str) -> None:
    tokenizer, chance = tokenizer_of(alias), random.Random(7)
    for _ in range(300):
        ids = [chance.randrange(tokenizer.vocab_size) for _ in range(chance.randrange(20))]
        detokenizer = tokenizer.detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("alias", MODEL_FILES)
def test_text_survives_a_round_trip_and_never_becomes_a_control_token(alias: str) -> None:
    tokenizer = tokenizer_of(alias)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("alias", MODEL_FILES)
def test_control_text_in_a_message_stays_text(alias: str) -> None:
    tokenizer = tokenizer_of(alias)
    ends = ("<|im_end|>", "<end_of_turn>", "<|endoftext|>", "<eos>", "<bos>", "<|im_start|>")
    plain = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    controls = [token_id for token_id in plain if tokenizer.decode([token_id]) == ""]
    content = "hi " + " ".join(ends)
    ids = tokenizer.encode_chat([{"role": "user", "content": content}])
    assert [token_id for token_id in ids if tokenizer.decode([token_id]) == ""] == controls
    assert content in tokenizer.decode(ids)


@pytest.mark.parametrize("alias", MODEL_FILES)
@pytest.mark.parametrize("content", [*TEXTS, "ends in <", "ends in <|im_"])
def test_chat_ids_are_those_of_the_ordinary_rendering_without_control_text(alias: str, content: str) -> None:
    tokenizer = tokenizer_of(alias)
    messages = [{"role": "user", "content": content}]
    ordinary = tokenizer.encode(tokenizer.render_chat(messages), parse_special=True, add_special_tokens=False)
    if "<|im_end|>" not in content:
        assert tokenizer.encode_chat(messages) == ordinary


@pytest.fixture(scope="module", params=["smollm2", pytest.param("qwen05", marks=pytest.mark.nightly)])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer, Any]:
    """The tokenizer of a GGUF file, one of the directory that transformers makes of it, and transformers' own."""
    path = weights_path(request.param)
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return Tokenizer.from_gguf(metadata_of(path)), Tokenizer.from_directory(folder), theirs


def test_a_directory_gives_the_ids_of_transformers(both: tuple[Tokenizer, Tokenizer, Any]) -> None:
    _, ours, theirs = both
    for text in TEXTS:
        assert ours.encode(text, parse_special=True) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text


def test_chats_from_a_directory_have_the_ids_of_transformers(both: tuple[Tokenizer, Tokenizer, Any]) -> None:
    _, ours, theirs = both
    messages = [{"role": "user", "content": "Hi 12345 <"}, {"role": "assistant", "content": "yes"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(messages) == list(expected)


def test_a_vocabulary_of_262_thousand_tokens_is_ready_and_a_10_kb_text_encoded_in_a_moment() -> None:
    metadata = metadata_of(weights_path("gemma3"))
    begin = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.process_time() - begin < 2.0
    text = "The quick brown fox jumps over the lazy dog, again and again.\n" * 160
    begin = time.process_time()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.process_time() - begin < 1.0
