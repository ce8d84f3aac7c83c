"""What a field of a request may hold, in few words, from the JSON schema of its model."""

from __future__ import annotations

import json
from typing import Any

from octavo.server.protocol.fields import MAX_TOKENS, RequestModel
from scripts.reference.markdown import code

_NO_BOUND = (MAX_TOKENS, 2.0**64, 2**64, -(2**63), -(2.0**63))


class FieldValues:
    """The fields of one model."""

    def __init__(self, model: type[RequestModel]) -> None:
        schema = model.model_json_schema()
        self._definitions: dict[str, Any] = schema.get("$defs", {})
        self._fields: dict[str, Any] = schema["properties"]
        self._needed: list[str] = schema.get("required", [])

    def of(self, name: str) -> str:
        """Nothing for a field that may only be null."""
        text = "; or ".join(self._forms(self._fields[name]))
        return f"{text}; needed" if name in self._needed else text

    def _forms(self, schema: dict[str, Any]) -> list[str]:
        if "$ref" in schema:
            return self._forms(self._definitions[schema["$ref"].rsplit("/", 1)[1]])
        if "discriminator" in schema:
            key, tags = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
            return [f"an object whose `{key}` is {_any(tags)}"]
        for several in ("anyOf", "oneOf"):
            if several in schema:
                found = [form for each in schema[several] for form in self._forms(each)]
                return list(dict.fromkeys(found))
        if "const" in schema or "enum" in schema:
            return [_any(schema.get("enum", [schema.get("const")]))]
        kind = schema.get("type")
        if kind == "array":
            items = "; or ".join(self._forms(schema.get("items", {}))) or "anything"
            if schema.get("maxItems") == 0:
                return ["an empty list"]
            return [f"a list{_count(schema)} of: {items}"]
        return {
            "null": [],
            "boolean": ["true or false"],
            "string": ["a text" + (f" of up to {schema['maxLength']} characters" if "maxLength" in schema else "")],
            "integer": ["a whole number" + _range(schema)],
            "number": ["a number" + _range(schema)],
            "object": ["an object"],
            None: ["anything"],
        }[kind]


def _any(values: Any) -> str:
    *others, last = (code(json.dumps(value).strip('"')) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


def _count(schema: dict[str, Any]) -> str:
    return f" of up to {schema['maxItems']}" if "maxItems" in schema else ""


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", schema.get("exclusiveMaximum"))
    below = "" if low is None or low in _NO_BOUND else f" from {low}"
    if "exclusiveMinimum" in schema:
        below = f" above {schema['exclusiveMinimum']}"
    return below + ("" if high is None or high in _NO_BOUND else f" to {high}")
