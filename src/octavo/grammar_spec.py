"""What the text of an answer has to match: a JSON schema, a regular expression, a list of choices or a grammar.

Plain data, checked for its size and its JSON; whether it is a sound grammar is found out when it is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from octavo.errors import InvalidRequest, shown

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_CHOICES_OF_GRAMMAR = 4096


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`text` is the schema as JSON, the expression, the choices as a JSON list, or the grammar, as Lark or GBNF.

    `lenient` holds for JSON schemas: keywords that cannot be enforced are passed over instead of refused. Best made
    with the class methods. Raises `InvalidRequest` for what is too long, or no JSON where it should be.
    """

    kind: GrammarKind
    text: str = ""
    lenient: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise InvalidRequest(f"the grammar kind is {shown(self.kind)}; it is one of {', '.join(_KINDS)}")
        if not isinstance(self.text, str):
            raise InvalidRequest(f"{self.kind} is {shown(self.text)}; give text")
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"{self.kind} has {len(self.text)} characters; at most {MAX_GRAMMAR_CHARS} are taken, shorten it"
            )
        if not self.text and self.kind != "json_object":
            raise InvalidRequest(f"{self.kind} is empty; give what the answer has to match, or leave it out")
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{self.kind} has an unpaired surrogate at character {error.start}; give valid Unicode"
            ) from error
        if self.kind == "json_schema":
            _schema_of(self.text)
        elif self.kind == "choice":
            _choices_of(self.text)

    @classmethod
    def json_object(cls) -> GrammarSpec:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: str | bool | Mapping[str, Any], *, strict: bool = True) -> GrammarSpec:
        """JSON that `schema` accepts; a string is the schema's own JSON. Without `strict` it is `lenient`."""
        text = schema if isinstance(schema, str) else _json(schema)
        return cls("json_schema", text, lenient=not strict)

    @classmethod
    def regex(cls, pattern: str) -> GrammarSpec:
        """Text that `pattern` matches as a whole, in the syntax of Rust's regex crate."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> GrammarSpec:
        """One of `choices`, word for word."""
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise InvalidRequest(f"choice is {shown(choices)}; give a list of texts")
        return cls("choice", _json(list(choices)))

    @classmethod
    def grammar(cls, text: str) -> GrammarSpec:
        """Text that a Lark or GBNF grammar derives; what has a `::=` is GBNF."""
        return cls("grammar", text)

    @property
    def schema(self) -> dict[str, Any] | bool:
        """The schema of a `json_schema`."""
        return _schema_of(self.text)

    @property
    def choices(self) -> list[str]:
        """The texts of a `choice`."""
        return _choices_of(self.text)


_KINDS = get_args(GrammarKind)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the grammar holds what JSON cannot express ({error}); give plain JSON data") from error


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{what} is not JSON at {place}: {error.msg.lower()}; correct it") from error
    except RecursionError as error:
        raise InvalidRequest(f"{what} is nested too deeply; flatten it, for example with $ref") from error
    except ValueError as error:  # a constant that JSON does not have, or a number of too many digits
        raise InvalidRequest(f"{what} is not JSON: {' '.join(str(error).split())}; correct it") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _schema_of(text: str) -> dict[str, Any] | bool:
    schema = _parsed(text, "json_schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"json_schema is {shown(schema)}; give an object")
    return schema


def _choices_of(text: str) -> list[str]:
    choices = _parsed(text, "choice")
    if not isinstance(choices, list) or not choices:
        raise InvalidRequest("choice should be a list of at least one text")
    if len(choices) > MAX_CHOICES_OF_GRAMMAR:
        raise InvalidRequest(f"choice has {len(choices)} texts; at most {MAX_CHOICES_OF_GRAMMAR} are taken")
    for number, each in enumerate(choices):
        if not isinstance(each, str) or not each:
            raise InvalidRequest(f"choice[{number}] is {shown(each)}; give a text that is not empty")
    return choices
