"""What a tool grammar lets a model say, at random, is what the parser of the same form reads as calls."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import jsonschema
import pytest
from fake_engine import byte_tokenizer
from llguidance import LLMatcher, LLTokenizer
from readings import Call

from octavo.errors import InvalidRequest
from octavo.grammar.check_process import check
from octavo.grammar.vocabulary import grammar_vocabulary
from octavo.grammar_spec import GrammarSpec
from octavo.server.choice_reader import ChoiceReader
from octavo.server.parsers.detect import parser_of
from octavo.server.parsers.forms import FORMS
from octavo.server.parsers.reasoning import THINKING
from octavo.server.parsers.tool_grammar import BeforeCalls, OfferedTool, tool_grammar
from octavo.tokenizer import Tokenizer

SMALL = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["a::=b", 'c"d']},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
    },
    "required": ["kind", "size"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["red", "green"]}},
}
TOOLS = [OfferedTool("first", SMALL), OfferedTool("second", {"properties": {}, "additionalProperties": False})]
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
THINK = THINKING["think"]
CONTROL = ("<tool_call>", "</tool_call>", "</think>", "[TOOL_CALLS]")


def control_tokenizer() -> tuple[Tokenizer, LLTokenizer]:
    tokenizer = byte_tokenizer(control=CONTROL)
    return tokenizer, grammar_vocabulary(tokenizer, tokenizer.vocab_size)


def plain_tokenizer() -> tuple[Tokenizer, LLTokenizer]:
    tokenizer = byte_tokenizer()
    return tokenizer, grammar_vocabulary(tokenizer, tokenizer.vocab_size)


def matcher_of(form: str, before: BeforeCalls, parallel: bool, tokenizer: Tokenizer, words: LLTokenizer) -> LLMatcher:
    spec = tool_grammar(TOOLS, FORMS[form], before, tokenizer.control_pieces, parallel=parallel)
    matcher = LLMatcher(words, check(spec), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def walk(matcher: LLMatcher, tokenizer: Tokenizer, chance: random.Random) -> str:
    """Text that the grammar allows: each token at random, the end as soon as it may come and luck has it."""
    ids: list[int] = []
    ends = tokenizer.eos_token_ids
    while len(ids) < 3000:
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(tokenizer.vocab_size) if mask[i // 8] >> (i % 8) & 1]
        assert allowed
        if ends & set(allowed) and (chance.random() < 0.4 or ends >= set(allowed)):
            return tokenizer.decode(ids, skip_special_tokens=False)
        ids.append(chance.choice([token for token in allowed if token not in ends]))
        matcher.consume_tokens(ids[-1:])
    raise AssertionError("the grammar never lets it end")


def read(form: str, text: str) -> tuple[str, list[Call]]:
    piece = ChoiceReader(None, parser_of(FORMS[form], SCHEMAS), ()).read(text, "stop")
    names = [call.name for call in piece.calls if call.name]
    joined = ["".join(call.arguments for call in piece.calls if call.index == index) for index in range(len(names))]
    return piece.text, list(zip(names, joined, strict=True))


@pytest.mark.parametrize("tokens", [plain_tokenizer, control_tokenizer], ids=["markers as text", "markers as tokens"])
@pytest.mark.parametrize("form", FORMS)
def test_what_must_be_calls_is_read_as_calls_that_keep_to_their_schemas(
    form: str, tokens: Callable[[], tuple[Tokenizer, LLTokenizer]]
) -> None:
    tokenizer, words = tokens()
    for parallel in (True, False):
        start = matcher_of(form, BeforeCalls(), parallel, tokenizer, words)
        for seed in range(6):
            text = walk(start.deep_copy(), tokenizer, random.Random(seed))
            content, calls = read(form, text)
            assert content == "" and calls, text
            assert parallel or len(calls) == 1
            for name, arguments in calls:
                jsonschema.validate(json.loads(arguments), {**SCHEMAS[name], "type": "object"})


def accepts(matcher: LLMatcher, text: str, tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    copy = matcher.deep_copy()
    return copy.validate_tokens(ids) == len(ids) and copy.consume_tokens(ids) and copy.is_accepting()


GOOD = '<tool_call>\n{"name": "second", "arguments": {}}\n</tool_call>'
BAD = '<tool_call>\n{"name": "third", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("tokens", [plain_tokenizer, control_tokenizer], ids=["markers as text", "markers as tokens"])
def test_where_text_is_allowed_calls_are_still_held_to_their_tools(
    tokens: Callable[[], tuple[Tokenizer, LLTokenizer]],
) -> None:
    tokenizer, words = tokens()
    matcher = matcher_of("hermes", BeforeCalls(text=True), True, tokenizer, words)
    for text in ("", "Just text, < and {.", GOOD, f"Let me see.\n{GOOD}\n{GOOD}"):
        assert accepts(matcher, text, tokenizer), text
    for text in (BAD, f"Let me see.\n{BAD}", f"{GOOD}\n{BAD}"):
        assert not accepts(matcher, text, tokenizer), text


@pytest.mark.parametrize("tokens", [plain_tokenizer, control_tokenizer], ids=["markers as text", "markers as tokens"])
@pytest.mark.parametrize("text_too", [False, True])
def test_thinking_may_come_first_and_must_end(
    text_too: bool, tokens: Callable[[], tuple[Tokenizer, LLTokenizer]]
) -> None:
    tokenizer, words = tokens()
    begun = matcher_of("hermes", BeforeCalls(text_too, THINK, True), True, tokenizer, words)
    assert accepts(begun, f"Hm <b>.\n</think>\n\n{GOOD}", tokenizer)
    assert not accepts(begun, f"Hm.</think>\n{BAD}", tokenizer)
    assert accepts(begun, "Hm.", tokenizer) == text_too
    fresh = matcher_of("hermes", BeforeCalls(text_too, THINK, False), True, tokenizer, words)
    for text in (GOOD, f"<think>Hm.</think>{GOOD}"):
        assert accepts(fresh, text, tokenizer), text


BARE = '{"name": "first", "arguments": {"kind": "a::=b", "size": 5}}'
BARE_CALLS = [
    BARE,
    f"\n{BARE}\n{BARE}",
    f"[{BARE}, {BARE}]",
    '{\n  "name": "second",\n  "arguments": {}\n}',
    '{"name":"second","arguments":{}}',
]
UNHELD_CALLS = [
    '{"name": "first", "arguments": {"kind": "other", "size": 5}}',
    '{"name": "first"}',
    '{"arguments": {}, "name": "first"}',
    '{"name": "first", "parameters": {"kind": "other"}}',
    '{"id": 1, "type": "function", "function": {"name": "first", "arguments": {}}}',
    f"{BARE} and more",
    '{"na\\u006de": "first", "arguments": {}}',
    '{"name": "f\\u0069rst", "arguments": {}}',
    '{"id": "\\"", "name": "first", "arguments": {}}',
    '[{"name": "first", "arguments": {}}]',
]
NO_CALLS = ['{"name": "Ada", "size": 5}', '{"type": "city", "id": 7}', "[1, 2]", "{}", f"So: {BARE}", "{", " \n"]


@pytest.mark.parametrize("tokens", [plain_tokenizer, control_tokenizer], ids=["markers as text", "markers as tokens"])
@pytest.mark.parametrize("lead", ["", "<think>So {.</think>", "begun"])
def test_bare_calls_that_the_parser_reads_are_held_to_their_schemas_where_text_is_allowed(
    lead: str, tokens: Callable[[], tuple[Tokenizer, LLTokenizer]]
) -> None:
    tokenizer, words = tokens()
    thinking = BeforeCalls(True, THINK if lead else None, lead == "begun")
    matcher = matcher_of("hermes", thinking, True, tokenizer, words)
    lead = "Hm.</think>\n" if lead == "begun" else lead
    for text in BARE_CALLS:
        assert accepts(matcher, lead + text, tokenizer), text
        assert read("hermes", text)[0].strip() == "" and read("hermes", text)[1], text
    for text in UNHELD_CALLS:
        assert not accepts(matcher, lead + text, tokenizer), text
        assert read("hermes", text)[1], text
    for text in [*NO_CALLS, GOOD, f"{NO_CALLS[0]} {GOOD}"]:
        assert accepts(matcher, lead + text, tokenizer), text
    for text in NO_CALLS:
        assert read("hermes", text) == (text, []), text


def test_without_parallel_calls_a_bare_one_is_the_only_one() -> None:
    tokenizer, words = plain_tokenizer()
    matcher = matcher_of("hermes", BeforeCalls(text=True), False, tokenizer, words)
    assert accepts(matcher, BARE, tokenizer) and accepts(matcher, f"[{BARE}]", tokenizer)
    assert not accepts(matcher, f"{BARE}\n{BARE}", tokenizer)


def test_an_answer_in_bare_json_may_be_text_that_begins_otherwise() -> None:
    tokenizer, words = plain_tokenizer()
    matcher = matcher_of("llama3", BeforeCalls(text=True), True, tokenizer, words)
    for text in ("", "Text with {braces}.", '{"name": "second", "parameters": {}}'):
        assert accepts(matcher, text, tokenizer), text
    for text in ('{"name": "third", "parameters": {}}', "{", '["a"]'):
        assert not accepts(matcher, text, tokenizer), text


def test_a_grammar_may_name_control_tokens_that_only_the_model_knows() -> None:
    assert "<[151657]>" in check(GrammarSpec.grammar('start: <[151657]> "a" <[151658]>'))


def test_tools_whose_schemas_are_too_long_are_refused() -> None:
    wide = OfferedTool("wide", {"properties": {f"property_{i}": {"type": "string"} for i in range(9000)}})
    with pytest.raises(InvalidRequest, match="at most"):
        tool_grammar([wide], FORMS["hermes"], BeforeCalls(), lambda word: [word], parallel=True)


def test_a_strict_schema_that_cannot_be_enforced_is_refused_and_another_is_passed_over() -> None:
    schema = {
        "properties": {"a": {"type": "string", "not": {"const": "x"}}},
        "required": ["a"],
        "unevaluatedItems": False,
    }
    for strict in (False, True):
        spec = tool_grammar(
            [OfferedTool("f", schema, strict)], FORMS["hermes"], BeforeCalls(), lambda word: [word], parallel=True
        )
        if strict:
            with pytest.raises(InvalidRequest):
                check(spec)
        else:
            assert "tool_call" in check(spec)
