"""/openapi.json of a running server: the bounds of its model and its settings stand where requests are described."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from asgi_calls import fake_app, get
from fake_engine import INFO, FakeEngine, byte_tokenizer

from octavo.server.openapi import limits_of
from octavo.server.protocol.fields import LIMITED
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


def described(path: str, engine: FakeEngine | None = None, **settings: Any) -> dict[str, Any]:
    """The schema of what POST `path` takes."""
    document = get(fake_app(engine, **settings), "/openapi.json").json()
    assert LIMITED not in json.dumps(document)
    found: dict[str, Any] = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return found


def choice(schema: dict[str, Any], field: str, kind: str) -> dict[str, Any]:
    """That form of a field which is of the JSON type `kind`."""
    return next(each for each in schema["properties"][field]["anyOf"] if each["type"] == kind)


def test_names_ids_and_counts_are_those_that_the_server_takes() -> None:
    schema = described("/v1/completions", model_names=("a", "b"), max_choices=7, max_prompts=3)
    assert choice(schema, "model", "string")["enum"] == ["a", "b"]
    assert choice(schema, "n", "integer")["maximum"] == 7
    assert choice(schema, "stop_token_ids", "array")["items"]["maximum"] == 259
    forms = [form for form in schema["properties"]["prompt"]["oneOf"] if form["type"] == "array"]
    ids = {"type": "integer", "minimum": 0, "maximum": 259}
    assert [form["items"] for form in forms if form["items"]["type"] == "integer"] == [ids]
    assert sorted(form["maxItems"] for form in forms) == [3, 3, INFO.max_prompt_tokens]
    forms = described("/v1/embeddings")["properties"]["input"]["oneOf"]
    assert INFO.max_context in [form["maxItems"] for form in forms if form["type"] == "array"]
    assert described("/detokenize")["properties"]["tokens"]["items"]["maximum"] == 259


@pytest.mark.parametrize("begins", [False, True])
def test_an_empty_text_is_a_prompt_only_where_the_model_has_a_token_to_begin_with(begins: bool) -> None:
    engine = FakeEngine(model_tokenizer=byte_tokenizer(begins_with_bos=begins))
    forms = described("/v1/completions", engine)["properties"]["prompt"]["oneOf"]
    texts = [form for form in forms if form["type"] == "string"]
    texts += [form["items"] for form in forms if form["type"] == "array" and form["items"]["type"] == "string"]
    assert [text.get("minLength", 0) for text in texts] == [0 if begins else 1] * 2


def test_while_the_model_loads_the_settings_alone_are_known() -> None:
    schema = described("/v1/completions", FakeEngine(state="loading"), max_choices=7)
    assert choice(schema, "n", "integer")["maximum"] == 7
    assert "enum" not in choice(schema, "model", "string")
    assert choice(schema, "stop_token_ids", "array")["items"]["maximum"] == 2**31 - 1


@pytest.mark.parametrize("vocab_size", [1, 2, 10, 11, 260, 1000, 1001, 2048])
def test_the_keys_of_a_bias_are_the_ids_of_the_vocabulary_and_nothing_else(vocab_size: int) -> None:
    engine = FakeEngine(model_info=replace(INFO, vocab_size=vocab_size))
    pattern = limits_of(ServerState(engine, ServerSettings()))["token id as text"]["pattern"]
    taken = [number for number in range(3 * vocab_size + 20) if re.search(pattern, str(number))]
    assert taken == list(range(vocab_size))
    assert not any(re.search(pattern, text) for text in ("", "00", "01", "-1", "1.0", "1e1", " 1"))


def test_fields_that_need_others_say_so() -> None:
    rules = json.dumps(described("/v1/completions")["allOf"])
    assert all(name in rules for name in ("stream_options", "stream", "max_tokens", "echo"))
    assert all(name in json.dumps(described("/v1/chat/completions")["allOf"]) for name in ("top_logprobs", "logprobs"))


def test_tools_stand_in_it_where_the_model_can_be_offered_some() -> None:
    without = choice(described("/v1/chat/completions"), "tools", "array")
    assert without["maxItems"] == 0
    given = choice(described("/v1/chat/completions", tool_parser="generic"), "tools", "array")
    assert given["maxItems"] == 128 and "function" in json.dumps(given)
