"""Text that is far too long is refused before any of it is encoded, in every API, and what is only counted is not."""

from __future__ import annotations

from typing import Any

import pytest
from api_calls import post
from asgi_calls import fake_app

from octavo.tokenizer import Tokenizer

LONG = "x" * 2_000_000
TURN = {"role": "user", "content": LONG}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt"),
        ("/v1/chat/completions", {"messages": [TURN]}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/embeddings", {"input": LONG}, "input"),
    ],
)
def test_a_hopeless_text_costs_nothing(
    path: str, fields: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = fake_app().state.octavo.engine.tokenizer

    def encode(self: Any, *arguments: Any, **settings: Any) -> list[int]:
        raise AssertionError("the text is encoded")

    encoder = type(tokenizer._parts.encoder)
    monkeypatch.setattr(encoder, "encode", encode)
    monkeypatch.setattr(encoder, "encode_fragments", encode)
    answer = post(path, fields)
    assert answer.status == 400
    assert answer.error["param"] == field and answer.error["code"] == "context_length_exceeded"
    message = answer.error["message"]
    assert f"maximum context length is 512 tokens and {field} has at least " in message
    assert "shorten it to at most 51" in message


def test_what_is_only_counted_may_be_of_any_length() -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 5000}]}
    counted = post("/v1/messages/count_tokens", fields)
    assert counted.status == 200 and counted.json()["input_tokens"] > 5000


def test_the_bound_is_of_the_vocabulary() -> None:
    tokenizer: Tokenizer = fake_app().state.octavo.engine.tokenizer
    assert 512 < tokenizer.least_tokens(LONG) < len(LONG)
