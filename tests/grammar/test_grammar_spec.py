"""What a grammar may be, before anybody compiles it."""

from __future__ import annotations

import json
import pickle

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar_spec import MAX_GRAMMAR_CHARS, GrammarSpec


def test_a_schema_may_be_given_as_data_or_as_its_own_json() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    spec = GrammarSpec.json_schema(schema)
    assert spec.schema == schema and list(json.loads(spec.text)["properties"]) == ["b", "a"]
    assert GrammarSpec.json_schema(json.dumps(schema)).schema == schema
    assert GrammarSpec.json_schema(True).schema is True
    assert (spec.lenient, GrammarSpec.json_schema(schema, strict=False).lenient) == (False, True)


def test_equal_grammars_are_one_key_also_in_another_process() -> None:
    spec = GrammarSpec.choice(["a", "b"])
    assert pickle.loads(pickle.dumps(spec)) == spec and hash(spec) == hash(GrammarSpec.choice(("a", "b")))
    assert spec.choices == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: GrammarSpec("yaml", "a"), "kind is 'yaml'"),  # type: ignore[arg-type]
        (lambda: GrammarSpec.regex(""), "regex is empty"),
        (lambda: GrammarSpec.regex(5), "regex is 5"),  # type: ignore[arg-type]
        (lambda: GrammarSpec.regex("a" * (MAX_GRAMMAR_CHARS + 1)), f"at most {MAX_GRAMMAR_CHARS}"),
        (lambda: GrammarSpec.regex("a\ud800"), "unpaired surrogate at character 1"),
        (lambda: GrammarSpec.choice([]), "at least one text"),
        (lambda: GrammarSpec.choice(["a", ""]), r"choice\[1\] is ''"),
        (lambda: GrammarSpec.choice("abc"), "give a list of texts"),
        (lambda: GrammarSpec.choice(["x"] * 4097), "at most 4096"),
        (lambda: GrammarSpec.json_schema('{"type":\n "object"'), "not JSON at line 2, column 10"),
        (lambda: GrammarSpec.json_schema("[1]"), "json_schema is a list"),
        (lambda: GrammarSpec.json_schema('{"minimum": NaN}'), "NaN is no JSON value"),
        (lambda: GrammarSpec.json_schema({"minimum": float("inf")}), "what JSON cannot express"),
        (lambda: GrammarSpec.json_schema({"enum": [object()]}), "what JSON cannot express"),
        (lambda: GrammarSpec.json_schema('{"items":' * 9000 + "1" + "}" * 9000), "nested too deeply"),
    ],
)
def test_what_can_be_no_grammar_is_refused_with_the_place(make, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        make()
    assert "\n" not in str(refused.value)
