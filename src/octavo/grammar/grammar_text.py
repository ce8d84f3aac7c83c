"""Writes a `GrammarSpec` in llguidance's own form, or says in one line what is wrong with it, and where.

Runs in the checking process: what it is given may be hostile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from llguidance import LLMatcher, grammar_from, regex_to_lark

from octavo.errors import InvalidRequest
from octavo.grammar.limits import parser_limits
from octavo.grammar.schema_rewrite import rewritten
from octavo.grammar_spec import GrammarSpec

# One space where JSON allows any: models write it so, and none can go on with white space for ever.
WHITE_SPACE = " ?"
_OPTIONS = "x-guidance"
_MAX_MESSAGE = 300
_MAX_SUBSCHEMAS = 200  # looked at to find out where an error lies

_SUBSCHEMAS = ("additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if", "then",
               "else", "unevaluatedProperties", "unevaluatedItems")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def grammar_text(spec: GrammarSpec) -> str:
    """The grammar, which is sound. Raises `InvalidRequest` for one that is not, or that is too large."""
    if spec.kind == "json_object":
        return schema_grammar({"type": "object"})
    if spec.kind == "json_schema":
        return _checked_schema(spec.schema, spec.lenient)
    if spec.kind == "choice":
        return _checked(grammar_from("choice", spec.choices), "the choice", _lark_place)  # type: ignore[arg-type]
    if spec.kind == "regex":
        _checked(LLMatcher.grammar_from_regex(spec.text), "the regex", _regex_place)  # as it was given, for the place
        text = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(spec.text, 'd')}/")
        return _checked(text, "the regex", _regex_place)
    return _checked(_grammar(spec.text), "the grammar", _lark_place)


def _checked(text: str, name: str, place: Callable[[str], str]) -> str:
    error = _error(text)
    if error is not None:
        raise InvalidRequest(f"{name} {place(error)}")
    return text


def schema_grammar(schema: object, *, lenient: bool = False) -> str:
    """The grammar of a JSON schema. Raises `InvalidRequest` for what is no schema at all."""
    options: dict[str, Any] = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": WHITE_SPACE,
        "coerce_one_of": False,
        "lenient": lenient,
    }
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(_plain(schema)), overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(f"the JSON schema cannot be used: {_line(str(error))}") from error


def _plain(schema: object) -> object:
    """Without what the library would take for options of its own; to a schema it is a keyword that says nothing."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name != _OPTIONS}


def _checked_schema(schema: dict[str, Any] | bool, lenient: bool) -> str:
    """As it is, if the library can enforce all of it; else in other words, if there are some; else what it can."""
    if schema is False:
        raise InvalidRequest("the JSON schema accepts nothing; give one that some value matches")
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(dialect, str) and re.search(r"draft-0[0-3]\b", dialect):
        raise InvalidRequest(f"the JSON schema is of {dialect}, which is not supported; draft 4 and later are")
    error = _schema_error(schema)
    if error is None:
        return schema_grammar(schema)
    other = rewritten(schema)
    if other is not None and _schema_error(other) is None:
        return schema_grammar(other)
    if lenient and _schema_error(schema, lenient=True) is None:
        return schema_grammar(schema, lenient=True)
    raise InvalidRequest(f"the JSON schema cannot be used at {_place_of(schema, error)}: {_told(error)}")


def _schema_error(schema: object, *, lenient: bool = False) -> str | None:
    try:
        return _error(schema_grammar(schema, lenient=lenient))
    except InvalidRequest as error:
        return str(error).removeprefix("the JSON schema cannot be used: ")


def _error(text: str) -> str | None:
    failed, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    return messages[0] if failed else None


def _grammar(text: str) -> str:
    if "::=" not in text:
        return LLMatcher.grammar_from_lark(text)
    try:
        return grammar_from("gbnf", text)
    except ValueError as error:
        message = str(error).removeprefix("Failed to convert the grammar from GBNF to Lark: ")
        raise InvalidRequest(f"the grammar cannot be used as GBNF: {_line(message)}") from error


def _place_of(schema: object, error: str) -> str:
    """Pointer to the innermost subschema that has this very error by itself."""
    pointer, left = "#", _MAX_SUBSCHEMAS
    top = schema if isinstance(schema, dict) else {}
    shared = {name: top[name] for name in ("$schema", "$defs", "definitions") if name in top}
    inner = _subschemas(schema)
    while left:
        left -= 1
        found = next(inner, None)
        if found is None:
            break
        step, child = found
        alone = {**shared, **child} if isinstance(child, dict) else child
        if _schema_error(alone) == error:
            pointer += step
            inner = _subschemas(child)
    return pointer


def _subschemas(schema: object) -> Iterator[tuple[str, object]]:
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        if name in _SUBSCHEMAS and isinstance(value, dict | bool):
            yield f"/{name}", value
        elif name in _LISTS and isinstance(value, list):
            yield from ((f"/{name}/{index}", each) for index, each in enumerate(value))
        elif name in _MAPS and isinstance(value, dict):
            for key, each in value.items():
                if isinstance(each, dict | bool):
                    yield f"/{name}/{key.replace('~', '~0').replace('/', '~1')}", each


def _regex_place(message: str) -> str:
    """Of an error in a regular expression: what, and at which character; or what of it cannot be enforced."""
    what = _of_regex(message)
    if what is None:
        found = re.search(r"\(in regex\): (.*?)(?:;| in regex /|$)", message, re.MULTILINE)
        told = _line(found[1] if found else message)
        return f"cannot be used: {told.replace('lookarounds', 'look-arounds, such as word boundaries, are')}"
    caret = re.search(r"^ {4}( *)\^+$", message, re.MULTILINE)
    where = f" at character {len(caret[1]) + 1}" if caret else ""
    return f"is not a regular expression that can be used{where}: {_line(what)}"


def _of_regex(message: str) -> str | None:
    """What the parser of regular expressions says, where an error is of one."""
    found = re.search(r"^error: (.*)$", message, re.MULTILINE)
    return None if found is None else found[1]


def _lark_place(message: str) -> str:
    """Of an error in a grammar: what, in which line and column."""
    found = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", message)
    if found is None:
        return f"cannot be used: {_line(message)}"
    inner = _of_regex(message)
    what = found[3] if inner is None else f"{found[3].split(': regex parse error')[0]}: {inner}"
    return f"cannot be used at line {found[1]}, column {found[2]}: {_line(what)}"


def _told(error: str) -> str:
    """The library's message, in words that say what to do where it has none."""
    keywords = re.match(r"Unimplemented keys: (\[.*\])", error)
    if keywords is not None:
        names = ", ".join(json.loads(keywords[1]))
        return f"{names} cannot be enforced; leave it out, or set strict to false to have it passed over"
    resource = re.match(r"Resource '(.*?)' is not present", error)
    if resource is not None:
        return f"{resource[1][:200]} lies elsewhere, and nothing is fetched; put it under $defs"
    inner = _of_regex(error)
    return _line(error) if inner is None else f"a pattern in it is no regular expression: {_line(inner)}"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}…"
