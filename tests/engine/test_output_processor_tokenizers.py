"""The output processor over the tokenizers of real models: stop strings across tokens, and characters of many."""

from __future__ import annotations

import pytest

from octavo.engine.output_processor import OutputProcessor
from octavo.models.loaders import open_checkpoint
from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer
from tests.conftest import weights_path

pytestmark = pytest.mark.weights

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
MIXED = "Sure! 🙂👩‍👩‍👧🇰🇷 안녕하세요, 你好 – naïve"


@pytest.fixture(params=["smollm2", "gemma3", "qwen05"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return open_checkpoint(weights_path(request.param)).tokenizer()


def stream(tokenizer: Tokenizer, token_ids: list[int], **params: object) -> tuple[OutputProcessor, list[str]]:
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    one = OutputProcessor(tokenizer.detokenizer(), tokenizer.eos_token_ids, settings, len(token_ids))
    shown: list[str] = []
    for token_id in token_ids:
        shown.append(one.push(token_id).text)
        if one.finish_reason is not None:
            break
    return one, shown


def test_every_stop_string_in_a_counting_answer_cuts_before_its_first_match(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(COUNTING, add_special_tokens=False)
    text = tokenizer.decode(token_ids)
    for length in range(1, 21):
        for start in range(len(text) - length + 1):
            stop = text[start : start + length]
            one, shown = stream(tokenizer, token_ids, stop=[stop])
            assert one.finish_reason == "stop"
            assert "".join(shown) == one.text == text[: text.index(stop)]


def test_characters_of_many_tokens_are_shown_whole_and_equal_the_full_decode(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(MIXED, add_special_tokens=False)
    one, shown = stream(tokenizer, token_ids)
    assert not any("\ufffd" in text for text in shown)
    assert "".join(shown) == one.text == tokenizer.decode(token_ids)
    assert one.finish_reason == "length"


def test_wherever_length_cuts_the_text_is_the_full_decode_of_what_was_generated(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(MIXED, add_special_tokens=False)
    for count in range(1, len(token_ids)):
        one, shown = stream(tokenizer, token_ids[:count])
        assert "".join(shown) == tokenizer.decode(token_ids[:count])
        assert not any("\ufffd" in text for text in shown[:-1])
        assert one.finish_reason == "length"


def test_each_end_id_stops_unseen_and_with_ignore_eos_goes_on_unseen(tokenizer: Tokenizer) -> None:
    words = tokenizer.encode("some words", add_special_tokens=False)
    for end in tokenizer.eos_token_ids:
        one, _ = stream(tokenizer, [*words, end, *words])
        assert (one.text, one.token_ids, one.finish_reason) == (tokenizer.decode(words), [*words, end], "stop")
        other, _ = stream(tokenizer, [*words, end, *words], ignore_eos=True)
        assert other.finish_reason == "length" and other.text == tokenizer.decode([*words, *words])
