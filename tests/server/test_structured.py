"""Structured output over HTTP: how it is asked for, what is refused, and what a grammar that fails looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_calls import CHAT, COMPLETIONS, HI, chat, complete, events_of, post
from fake_engine import FakeEngine

from octavo.grammar_spec import GrammarSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OBJECT = {"type": "json_object"}


def formatted(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": OBJECT}, GrammarSpec.json_object()),
        ({"response_format": formatted(strict=True)}, GrammarSpec.json_schema(SCHEMA)),
        ({"response_format": formatted(strict=False)}, GrammarSpec.json_schema(SCHEMA, strict=False)),
        ({"response_format": formatted(description="d")}, GrammarSpec.json_schema(SCHEMA, strict=False)),
        ({"regex": "[a-z]+"}, GrammarSpec.regex("[a-z]+")),
        ({"choice": ["yes", "no"]}, GrammarSpec.choice(["yes", "no"])),
        ({"grammar": 'root ::= "a"'}, GrammarSpec.grammar('root ::= "a"')),
        ({"response_format": {"type": "text"}, "regex": "a"}, GrammarSpec.regex("a")),
    ],
)
def test_each_form_reaches_the_engine_as_its_grammar(fields: dict[str, Any], expected: GrammarSpec | None) -> None:
    engine = FakeEngine()
    assert chat(engine, **fields).status == 200
    assert complete("hi", engine, n=2, **fields).status == 200
    assert [request.params.grammar for request in engine.requests] == [expected] * 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": formatted(name="two words")}, "response_format.json_schema.name"),
        ({"response_format": formatted(name="n" * 65)}, "response_format.json_schema.name"),
        ({"response_format": formatted(schema=[])}, "response_format.json_schema.schema"),
        ({"response_format": formatted(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema"),
        ({"response_format": formatted(schema={"enum": ["x" * 300_000]})}, "response_format.json_schema.schema"),
        ({"regex": ""}, "regex"),
        ({"regex": 5}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", 1]}, "choice[1]"),
        ({"grammar": "x" * 300_000}, "grammar"),
        ({"response_format": OBJECT, "regex": "a"}, "regex"),
        ({"choice": ["a"], "grammar": "b"}, "grammar"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_or_is_malformed_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    for answer in (chat(**fields), complete("hi", **fields)):
        assert answer.status == 400 and answer.error["param"] == param, answer.error


def test_scoring_takes_no_grammar() -> None:
    answer = complete("hi", max_tokens=0, echo=True, logprobs=1, regex="a")
    assert answer.status == 400 and answer.error["param"] == "max_tokens"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_grammar_that_cannot_be_compiled_is_a_400_of_its_own_streaming_or_not(path: str) -> None:
    prompt = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    for stream in (False, True):
        engine = FakeEngine(fault="invalid_grammar", fault_after=0)
        answer = post(path, {**prompt, "stream": stream, "regex": "(a"}, engine)
        assert answer.status == 400
        assert answer.error["code"] == "invalid_grammar" and answer.error["type"] == "invalid_request_error"


def test_a_grammar_that_fails_later_is_an_event_in_the_stream() -> None:
    answer = post(CHAT, {"messages": HI, "stream": True, "regex": "a"}, FakeEngine(fault="invalid_grammar"))
    last = events_of(answer.body)[-1]
    assert answer.status == 200 and last["error"]["code"] == "invalid_grammar"
    assert json.dumps(last)
