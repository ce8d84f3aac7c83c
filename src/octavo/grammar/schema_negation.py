"""Schemas of what another schema refuses, as far as that can be told without `not`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any] | bool
_TYPES = ("null", "boolean", "object", "array", "number", "string")
_OPPOSITES = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


class Negation:
    """`of(schema)` accepts only what `schema` refuses; it need not accept all of that. None if nothing is known."""

    def __init__(self, rewrite: Callable[[Schema], Schema], *, booleans_exclude: bool) -> None:
        """`booleans_exclude`: `exclusiveMinimum` is true or false, as in draft 4, so bounds are let be."""
        self._rewrite = rewrite
        self._booleans_exclude = booleans_exclude

    def of(self, schema: Schema) -> Schema | None:
        if isinstance(schema, bool):
            return not schema
        if not schema:
            return False
        ways = [way for name, value in schema.items() for way in self._ways(name, value, schema) if way is not False]
        if not ways:
            return None
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _ways(self, name: str, value: Any, schema: dict[str, Any]) -> Iterator[Schema]:
        """Schemas that break the keyword `name`: each is one way not to match."""
        if name == "type":
            yield from _other_types([value] if isinstance(value, str) else value)
        elif name in ("enum", "const"):
            yield from _other_values(value if name == "enum" else [value], bounds=not self._booleans_exclude)
        elif name in _OPPOSITES:
            kind, opposite, step = _OPPOSITES[name]
            if int(value) + step >= 0:
                yield {"type": kind, opposite: int(value) + step}
        elif name in _BOUNDS:
            if not self._booleans_exclude:
                yield {"type": "number", _BOUNDS[name]: value}
        elif name == "required":
            if isinstance(value, list):
                yield from ({"type": "object", "properties": {each: False}} for each in value)
        elif name == "properties":
            for key, each in value.items():
                refused = self.of(each)
                if refused not in (None, False):
                    yield {"type": "object", "required": [key], "properties": {key: refused}}
        elif name in ("items", "contains"):
            yield from self._array_ways(name, value, schema)
        elif name == "not":
            yield self._rewrite(value)
        elif name == "allOf":
            yield from (refused for each in value if (refused := self.of(each)) is not None)
        elif name in ("anyOf", "oneOf"):
            refusals = [self.of(each) for each in value]
            if None not in refusals:
                yield {"allOf": refusals}

    def _array_ways(self, name: str, value: Any, schema: dict[str, Any]) -> Iterator[Schema]:
        if isinstance(value, list) or "prefixItems" in schema or "minContains" in schema:
            return
        refused = self.of(value)
        if refused is None:
            return
        if name == "contains":
            yield {"type": "array", "maxItems": 0} if refused is False else {"type": "array", "items": refused}
        elif refused is not False:
            yield {"type": "array", "minItems": 1, "items": refused}


def _other_types(types: list[Any]) -> Iterator[Schema]:
    if not all(isinstance(each, str) for each in types):
        return
    taken = set(types) | ({"number"} if "integer" in types else set())
    others = [each for each in _TYPES if each not in taken]
    if others:
        yield {"type": others}


def _other_values(values: list[Any], *, bounds: bool) -> Iterator[Schema]:
    """Values of types that none of `values` has, longer strings and greater numbers."""
    yield from _other_types([_type_of(value) for value in values])
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        yield {"type": "string", "minLength": max(map(len, texts)) + 1}
    numbers = [value for value in values if _type_of(value) == "number"]
    if numbers and bounds:
        yield {"type": "number", "exclusiveMinimum": max(numbers)}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (dict, "object"), (list, "array"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "number"
