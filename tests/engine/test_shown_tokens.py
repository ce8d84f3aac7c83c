"""Control tokens in a choice's text: hidden, but for those that a request wants to see."""

from __future__ import annotations

import pytest

from octavo.engine.live_request import detokenizer_of
from octavo.errors import InvalidRequest
from octavo.sampling_params import SamplingParams
from tests.server.fake_engine import byte_tokenizer

TOKENIZER = byte_tokenizer()
START, END = TOKENIZER.encode("<|im_start|><|im_end|>", add_special_tokens=False, parse_special=True)
IDS = [START, *TOKENIZER.encode("é!", add_special_tokens=False), END]


def shown(**fields: object) -> str:
    detokenizer = detokenizer_of(TOKENIZER, SamplingParams(**fields))  # type: ignore[arg-type]
    return "".join([*map(detokenizer.push, IDS), detokenizer.finish()])


def test_control_tokens_are_no_part_of_the_text() -> None:
    assert shown() == "é!"


def test_those_that_are_named_are_shown_and_no_others() -> None:
    assert shown(shown_token_ids=[END]) == "é!<|im_end|>"


def test_all_are_shown_if_none_is_to_be_skipped() -> None:
    assert shown(skip_special_tokens=False) == "<|im_start|>é!<|im_end|>"


def test_what_is_no_id_and_no_switch_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="shown_token_ids is -1"):
        SamplingParams(shown_token_ids=[-1])
    with pytest.raises(InvalidRequest, match="skip_special_tokens must be true or false"):
        SamplingParams(skip_special_tokens="no")  # type: ignore[arg-type]
