"""Text that is far too long is refused before any of it is encoded, in every API; what is only counted may be more."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from api_calls import post
from asgi_calls import fake_app

from octavo.server import prompts
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


COUNTING = [
    ("/tokenize", lambda text: {"prompt": text}, "prompt", "send it in parts"),
    ("/tokenize", lambda text: {"messages": [{"role": "user", "content": text}]}, "messages", "shorten it"),
    ("/v1/messages/count_tokens", lambda text: {"messages": [{"role": "user", "content": text}]}, "", "shorten it"),
]


@pytest.mark.parametrize(("path", "fields", "field", "remedy"), COUNTING, ids=["text", "messages", "count_tokens"])
def test_what_is_only_counted_may_exceed_the_context_but_is_bounded(
    path: str, fields: Callable[[str], dict[str, Any]], field: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MOST_COUNTED_CHARS", 6000)
    counted = post(path, fields("x" * 5000))
    assert counted.status == 200
    assert (counted.json().get("count") or counted.json()["input_tokens"]) >= 5000, "the context has 512"
    refused = post(path, fields("x" * 6001))
    error = refused.json()["error"]
    assert refused.status == 400 and error.get("param", "") == field
    found = re.search(r" has ([0-9]+) characters; at most 6000 are encoded at once, (.*)", error["message"])
    assert found is not None and found[2] == remedy
    assert 6001 <= int(found[1]) < 6300, "of the template's text, too"


def test_ids_that_are_turned_to_text_are_bounded_as_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MOST_COUNTED_CHARS", 6000)
    assert post("/detokenize", {"tokens": [3] * 6000}).status == 200, "the context has 512"
    refused = post("/detokenize", {"tokens": [3] * 6001})
    assert refused.status == 400 and refused.error["param"] == "tokens"
    assert refused.error["message"] == "tokens has 6001 ids; at most 6000 are decoded at once, send them in parts"


def test_text_that_fills_the_context_may_be_counted_however_long_that_is() -> None:
    info = fake_app().state.octavo.engine.info
    assert prompts.most_counted_chars(info) == 1 << 20
    assert prompts.most_counted_chars(replace(info, max_context=1_000_000)) == 8_000_000


def test_the_bound_is_of_the_vocabulary() -> None:
    tokenizer: Tokenizer = fake_app().state.octavo.engine.tokenizer
    assert 512 < tokenizer.least_tokens(LONG) < len(LONG)


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "' + "x" * 5000 + '"}'}}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x" * 5000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 5000}]}]},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [CALL]}]},
        {"messages": [{"role": "assistant", "content": "hi", "reasoning_content": "x" * 5000}]},
        {"messages": [{"role": "user", "content": ""}] * 1000},
        {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"note": "x" * 5000}},
    ],
    ids=["content", "parts", "tool call", "reasoning", "many messages", "variables"],
)
def test_a_long_conversation_is_encoded_off_the_event_loop_wherever_its_text_is(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def encode_chat(self: Tokenizer, *arguments: Any, **settings: Any) -> list[int]:
        threads.append(threading.current_thread())
        return [3]

    monkeypatch.setattr(Tokenizer, "encode_chat", encode_chat)
    assert post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).status == 200
    assert post("/tokenize", fields).status == 200
    assert threads[0] is threading.main_thread() and threads[1] is not threads[0]
