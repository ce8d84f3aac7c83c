"""A rewritten schema accepts nothing that the original refuses, and something where the original does."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest

from octavo.grammar.schema_rewrite import rewritten

VALUES: list[Any] = [
    None, True, 0, 1, 2.5, -3, 40, "", "a", "bb", "ccc", [], [1], [1, "a"], [1, 2, 3], ["a", "a"], {}, {"a": 1},
    {"a": "x"}, {"b": 1}, {"a": 1, "b": "y"}, {"a": 1, "b": 2, "c": 3}, {"foo": True}, {"a": {"b": 1}},
]  # fmt: skip
SCHEMAS: list[Any] = [
    {"not": {"type": "string"}},
    {"not": {"type": ["integer", "null"]}},
    {"not": {"enum": [1, "a", None]}},
    {"not": {"required": ["a", "b"]}},
    {"not": {"properties": {"a": {"type": "integer"}}}},
    {"not": {"minLength": 2}},
    {"not": {"anyOf": [{"type": "object"}, {"maximum": 1}]}},
    {"not": {"not": {"type": "array"}}},
    {"not": {"items": {"type": "integer"}}},
    {"not": {"contains": {"type": "string"}}},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"minimum": 1}, {"type": "integer"}]},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 0}},
    {"if": {"type": "string"}, "else": {"type": "array"}},
    {"then": {"type": "null"}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
    {"propertyNames": {"pattern": "^[ab]$"}},
    {"propertyNames": {"maxLength": 1}},
    {"propertyNames": {"enum": ["foo", "a"]}},
    {"propertyNames": False},
    {"contains": {"type": "string"}, "minContains": 2},
    {"contains": {"type": "integer"}, "minContains": 0, "maxContains": 0},
    {"contains": True},
    {"uniqueItems": False},
    {"uniqueItems": True, "maxItems": 1},
    {"properties": {"a": True}, "unevaluatedProperties": False},
    {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": {"type": "string"}},
    {
        "anyOf": [{"required": ["a"], "properties": {"a": True}}, {"properties": {"b": True}}],
        "unevaluatedProperties": False,
    },
    {"$ref": "#/$defs/x", "unevaluatedProperties": False, "$defs": {"x": {"properties": {"b": True}}}},
    {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    {"prefixItems": [True], "unevaluatedItems": {"type": "string"}},
    {"minItems": 2.0, "maxItems": 3.0},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_what_is_written_is_narrower_and_not_empty(schema: Any) -> None:
    other = rewritten(schema)
    assert other is not None
    original, narrower = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(other)
    accepted = [value for value in VALUES if narrower.is_valid(value)]
    assert accepted
    for value in accepted:
        assert original.is_valid(value), (value, other)


@pytest.mark.parametrize(("outer", "inner"), list(itertools.combinations(SCHEMAS, 2))[::17], ids=lambda _: "")
def test_combined_schemas_are_narrower_too(outer: Any, inner: Any) -> None:
    for schema in (
        {"allOf": [outer, inner]},
        {"properties": {"a": inner}, **outer},
        {"not": {"anyOf": [outer, inner]}},
    ):
        other = rewritten(schema)
        if other is None:
            continue
        original, narrower = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(other)
        for value in VALUES:
            assert original.is_valid(value) or not narrower.is_valid(value), (schema, other, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": True},
        {"$dynamicRef": "#x"},
        {"not": {"pattern": "a"}},
        {"not": {"$ref": "#"}},
        {"propertyNames": {"pattern": "a", "minLength": 2}},
        {"contains": {"type": "string"}, "minContains": "two"},
        {"dependentRequired": 5},
        {"not": 7},
    ],
    ids=str,
)
def test_what_has_no_other_words_or_is_no_schema_is_let_be(schema: Any) -> None:
    assert rewritten(schema) is None
