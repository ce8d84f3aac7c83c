"""Grammars made to exhaust time, memory or the stack: each is refused in one line, and nothing else is harmed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar.checker import checked
from octavo.grammar_spec import GrammarSpec


def chain(length: int, link: Any) -> dict[str, Any]:
    """A schema of so many definitions, each of which is `link` of a reference to the next."""
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{length}": {"type": "string"}}}


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec.json_schema(value)


HOSTILE = {
    "a stack overflow in references": (lambda: schema(chain(5000, lambda ref: ref)), "nested too deeply"),
    "a stack overflow in terminals": (
        lambda: GrammarSpec.grammar("start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(4000)) + '\nR4000: "a"'),
        "nested too deeply",
    ),
    "a schema that refers to itself": (
        lambda: schema({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}),
        "circular|cannot be",
    ),
    "a schema with no end": (
        lambda: schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
        "nothing matches it",
    ),
    "an exponential product of branches": (
        lambda: schema(
            {
                "allOf": [
                    {"anyOf": [{"required": [f"x{i}"]}, {"properties": {f"x{i}": {"type": "null"}}}]}
                    for i in range(24)
                ]
            }
        ),
        "too large|took more than|takes more",
    ),
    "an exponential terminal": (
        lambda: GrammarSpec.grammar("start: R0\nR40: /a/\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40))),
        "too big",
    ),
    "counted repetitions in each other": (
        lambda: schema({"type": "string", "pattern": "^(((a{1000}){1000}){1000})$"}),
        "simplify it",
    ),
    "a grammar that deepens a parser in Python": (
        lambda: GrammarSpec.grammar("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000),
        "recursion|nested",
    ),
    "a regex of many brackets": (lambda: GrammarSpec.regex("(" * 9000 + "a" + ")" * 9000), "nested parentheses"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_one_line_within_its_time(name: str) -> None:
    make, complaint = HOSTILE[name]
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        checked(make())
    assert time.monotonic() - began < 60
    assert len(str(refused.value)) < 500 and "\n" not in str(refused.value)


def test_a_schema_of_a_megabyte_is_refused_before_it_is_looked_at() -> None:
    properties = {f"p{i:06}": {"type": "integer", "minimum": i} for i in range(26_000)}
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="at most 262144 are taken"):
        schema({"type": "object", "properties": properties})
    assert time.monotonic() - began < 5


def test_time_by_the_clock_is_bounded_too() -> None:
    with pytest.raises(InvalidRequest, match=r"more than 0.01 s to compile"):
        checked(schema({"type": "object"}), wall_s=0.01)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (schema({"properties": {"a": {"items": {"type": "strin"}}}}), "at #/properties/a/items: Invalid type: strin"),
        (schema({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "a(b"}]}), "at #/anyOf/1: .*unclosed group"),
        (schema({"$defs": {"a/b": {"uniqueItems": True}}, "$ref": "#/$defs/a~1b"}), "uniqueItems cannot be enforced"),
        (schema({"$ref": "http://example.com/s"}), "http://example.com/s lies elsewhere, and nothing is fetched"),
        (schema({"$ref": "#/$defs/none"}), "none"),
        (schema({"$schema": "http://json-schema.org/draft-03/schema#"}), "draft 4 and later"),
        (schema(False), "accepts nothing"),
        (GrammarSpec.regex("ab[c"), "at character 3: unclosed character class"),
        (GrammarSpec.regex("(?=a)b"), "look-around"),
        (GrammarSpec.grammar('start: a\na: "a" | nothing'), "at line 2, column 4: unknown name"),
        (GrammarSpec.grammar('root ::= ("a"'), r"GBNF: Expected '\)' at line 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_grammar_that_is_wrong_is_refused_with_the_place(spec: GrammarSpec, complaint: str) -> None:
    from octavo.grammar.grammar_text import grammar_text

    with pytest.raises(InvalidRequest, match=complaint):
        grammar_text(spec)


def test_large_grammars_that_are_sound_are_taken() -> None:
    optional = {f"property_{i}": {"type": "string"} for i in range(300)}
    assert json.loads(checked(schema({"type": "object", "properties": optional})))
    assert checked(GrammarSpec.choice([f"value number {i}" for i in range(4096)]))
