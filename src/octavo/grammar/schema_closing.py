"""Which properties and items a schema evaluates, and the schema that refuses, or constrains, all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any] | bool
_BRANCHES = ("anyOf", "oneOf")
_MOST_REFS = 20


@dataclass(slots=True)
class _Evaluated:
    """`items` counts from the front. `all_properties` and `all_items`: there are no others."""

    names: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    all_properties: bool = False
    items: int = 0
    all_items: bool = False

    def add(self, other: _Evaluated) -> None:
        self.names |= other.names
        self.patterns |= other.patterns
        self.all_properties |= other.all_properties
        self.items = max(self.items, other.items)
        self.all_items |= other.all_items


Close = Callable[[_Evaluated], Schema]


def closed_properties(
    schema: Mapping[str, Any], root: Schema, others: Schema, rewrite: Callable[[Schema], Schema]
) -> Schema:
    """What `schema` with `unevaluatedProperties: others` asks of properties that nothing in it evaluates."""

    def close(seen: _Evaluated) -> Schema:
        if seen.all_properties:
            return True
        closed: dict[str, Any] = {"properties": dict.fromkeys(sorted(seen.names), True), "additionalProperties": others}
        if seen.patterns:
            closed["patternProperties"] = dict.fromkeys(sorted(seen.patterns), True)
        return closed

    return _closed(schema, root, close, rewrite)


def closed_items(
    schema: Mapping[str, Any], root: Schema, others: Schema, rewrite: Callable[[Schema], Schema]
) -> Schema:
    """The same for items."""
    dialect = str(root.get("$schema", "")) if isinstance(root, dict) else ""

    def close(seen: _Evaluated) -> Schema:
        if seen.all_items:
            return True
        if others is False:
            return {"maxItems": seen.items}
        if not seen.items:
            return {"items": others}
        if "2019-09" in dialect:
            return {"items": [True] * seen.items, "additionalItems": others}
        return {"prefixItems": [True] * seen.items, "items": others}

    return _closed(schema, root, close, rewrite)


def _closed(schema: Mapping[str, Any], root: Schema, close: Close, rewrite: Callable[[Schema], Schema]) -> Schema:
    base = _evaluated(schema, root, _MOST_REFS)
    branches = _branches(schema)
    if not branches:
        return close(base)
    closed: list[Schema] = []
    for branch in branches:
        seen = _evaluated(branch, root, _MOST_REFS)
        seen.add(base)
        closed.append({"allOf": [rewrite(branch), close(seen)]})
    return {"anyOf": closed}


def _branches(schema: Mapping[str, Any]) -> list[Schema]:
    """Schemas of which one has to hold, beside what `schema` asks for anyway."""
    for name in _BRANCHES:
        if name in schema:
            return list(schema[name])
    if "if" in schema:
        return [{"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)]
    dependent = schema.get("dependentSchemas")
    if isinstance(dependent, dict) and len(dependent) == 1:
        return [*dependent.values(), True]
    return []


def _evaluated(schema: Schema | Mapping[str, Any], root: Schema, refs: int) -> _Evaluated:
    """What `schema` evaluates wherever it holds."""
    seen = _Evaluated()
    if isinstance(schema, bool):
        return seen
    seen.names |= schema.get("properties", {}).keys()
    seen.patterns |= schema.get("patternProperties", {}).keys()
    seen.all_properties = "additionalProperties" in schema or ("unevaluatedProperties" in schema and refs < _MOST_REFS)
    prefix = schema.get("prefixItems", [])
    items = schema.get("items")
    if isinstance(items, list):
        prefix, items = items, schema.get("additionalItems")
    seen.items = len(prefix)
    seen.all_items = items is not None or ("unevaluatedItems" in schema and refs < _MOST_REFS)
    for each in schema.get("allOf", ()):
        seen.add(_evaluated(each, root, refs - 1) if refs else _Evaluated())
    target = _target(schema.get("$ref"), root)
    if target is not None and refs:
        seen.add(_evaluated(target, root, refs - 1))
    return seen


def _target(ref: Any, root: Schema) -> Schema | None:
    """What a reference within this document points to."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, ref[1:].split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found if isinstance(found, dict | bool) else None
