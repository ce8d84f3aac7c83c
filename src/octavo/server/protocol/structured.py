"""The form that an answer is to have: OpenAI's `response_format`, and our `regex`, `choice` and `grammar`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from octavo.errors import InvalidRequest
from octavo.grammar_spec import MAX_CHOICES_OF_GRAMMAR, MAX_GRAMMAR_CHARS, GrammarSpec
from octavo.server.errors import invalid
from octavo.server.protocol.fields import Label, RequestModel, absent

SchemaName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]],
    Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES_OF_GRAMMAR),
]
_OWN = ("regex", "choice", "grammar")
# For the JSON schema, what `grammar_of` refuses.
ONE_FORM: dict[str, Any] = {
    "anyOf": [
        {"allOf": [absent(name) for name in _OWN]},
        *({"allOf": [absent("response_format"), *(absent(name) for name in _OWN if name != one)]} for one in _OWN),
    ]
}


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]


class NamedSchema(RequestModel):
    """With `strict` what cannot be enforced is refused, else it is passed over."""

    name: SchemaName
    description: Label | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def grammar_of(
    response_format: ResponseFormat | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> GrammarSpec | None:
    """What the answer has to match; None for free text. Raises a 400 `HttpError` if it is told in two ways.

    Raises `InvalidRequest`, beginning with the field's name, for what cannot be a grammar.
    """
    given = [name for name, value in zip(_OWN, (regex, choice, grammar), strict=True) if value is not None]
    if response_format is not None and not isinstance(response_format, TextFormat):
        given.insert(0, "response_format")
    if len(given) > 1:
        raise invalid(f"{given[1]} is given with {given[0]}, and an answer has one form; leave one out", param=given[1])
    if regex is not None:
        return GrammarSpec.regex(regex)
    if choice is not None:
        return GrammarSpec.choice(choice)
    if grammar is not None:
        return GrammarSpec.grammar(grammar)
    if isinstance(response_format, JsonObjectFormat):
        return GrammarSpec.json_object()
    if isinstance(response_format, JsonSchemaFormat):
        named = response_format.json_schema
        try:
            return GrammarSpec.json_schema(named.definition, strict=bool(named.strict))
        except InvalidRequest as error:
            raise invalid(str(error), param="response_format.json_schema.schema") from error
    return None
