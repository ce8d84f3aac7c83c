"""What is said of a grammar that cannot be used: the place in what was given, and no word of how it is made to work."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar.checker import checked
from octavo.grammar_spec import GrammarSpec

SAID = [
    (GrammarSpec.regex("a("), "the regex is not a regular expression that can be used at character 2: unclosed group"),
    (
        GrammarSpec.regex(r"\bfoo"),
        "the regex cannot be used: look-arounds, such as word boundaries, are not supported yet",
    ),
    (GrammarSpec.grammar("start: foo"), 'the grammar cannot be used at line 1, column 8: unknown name: "foo"'),
    (
        GrammarSpec.grammar('start: b\nb: /a(/ "c"'),
        'the grammar cannot be used at line 2, column 4: invalid regex "a(" (in regex): unclosed group',
    ),
    (
        GrammarSpec.grammar("start: <|im_end|>"),
        "the grammar cannot be followed: the token <|im_end|> is named; write its id, as <[2]>; simplify it",
    ),
    (GrammarSpec.grammar("root ::= foo"), "the grammar cannot be used as GBNF: Rule 'foo' not found"),
    (
        GrammarSpec.json_schema({"properties": {"a": {"type": "string", "pattern": "a("}}}),
        "the JSON schema cannot be used at #/properties/a: a pattern in it is no regular expression: unclosed group",
    ),
    (
        GrammarSpec.json_schema({"type": "array", "uniqueItems": True}),
        "the JSON schema cannot be used at #: uniqueItems cannot be enforced; leave it out, or set strict to false to "
        "have it passed over",
    ),
]


@pytest.mark.parametrize(("spec", "said"), SAID, ids=[f"{spec.kind} {spec.text[:20]!r}" for spec, _ in SAID])
def test_the_place_and_the_fault_are_told_in_terms_of_what_was_given(spec: GrammarSpec, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(spec)
    assert str(refused.value) == said


def test_a_grammar_without_a_gbnf_rule_is_lark_with_all_its_attributes() -> None:
    assert "max_tokens" in checked(GrammarSpec.grammar("start: a\na[max_tokens=3]: /x*/"))
    with pytest.raises(InvalidRequest, match=r"^the grammar cannot be used at line 1, column 4: Expected token"):
        checked(GrammarSpec.grammar("xyz"))


@pytest.mark.parametrize("options", [{"lenient": True}, {"whitespace_pattern": "x"}, {"no_such": 1}, 5])
def test_a_schema_cannot_set_options_of_the_library(options: object) -> None:
    """Else `strict` would be the schema's to decide."""
    given = {"type": "array", "items": {"type": "integer"}}
    assert checked(GrammarSpec.json_schema({**given, "x-guidance": options})) == checked(GrammarSpec.json_schema(given))
    with pytest.raises(InvalidRequest, match="uniqueItems cannot be enforced"):
        checked(GrammarSpec.json_schema({**given, "uniqueItems": True, "x-guidance": options}))
