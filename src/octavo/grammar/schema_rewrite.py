"""Says a JSON schema with fewer keywords, for those that a grammar cannot express by themselves.

What is written accepts nothing that the original refuses. It may accept less: each rule below says where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.grammar.schema_closing import closed_items, closed_properties
from octavo.grammar.schema_negation import Negation

Schema = dict[str, Any] | bool
MAX_SUBSCHEMAS = 5000

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "prefixItems")
_SINGLE = ("additionalProperties", "additionalItems")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"
)  # fmt: skip
# By the specification a format only annotates. These are enforced; others are passed over.
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_OLD_DIALECTS = ("draft-04", "draft-06", "draft-07")


class CannotRewrite(Exception):
    """Some keyword has no other words."""


def rewritten(schema: Schema) -> Schema | None:
    """The same or less, in keywords that grammars know; None if that is not possible."""
    try:
        return _Rewriter(schema).rewrite(schema)
    except CannotRewrite:
        return None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None  # a keyword's value is of a kind that it cannot have, which the library has said already


class _Rewriter:
    def __init__(self, root: Schema) -> None:
        self._root = root
        dialect = str(root.get("$schema", "")) if isinstance(root, dict) else ""
        self._refs_stand_alone = any(name in dialect for name in _OLD_DIALECTS)
        self._has_recursive_anchor = _mentions(root, "$recursiveAnchor")
        self._negation = Negation(self.rewrite, booleans_exclude="draft-04" in dialect)
        self._left = MAX_SUBSCHEMAS

    def rewrite(self, schema: Schema) -> Schema:
        if not isinstance(schema, dict):
            return schema
        self._left -= 1
        if self._left < 0:
            raise CannotRewrite
        if self._refs_stand_alone and "$ref" in schema:
            return {"$ref": schema["$ref"]} if schema is not self._root else schema
        kept: dict[str, Any] = {}
        more: list[Schema] = []
        for name, value in schema.items():
            rule = _RULES.get(name)
            if rule is not None:
                more += rule(self, value, schema)
            else:
                self._keep(kept, name, value)
        more = [each for each in more if each is not True]
        if more:
            kept["allOf"] = [*kept.get("allOf", ()), *more]
        return kept

    def _keep(self, kept: dict[str, Any], name: str, value: Any) -> None:
        """Write a keyword as it is, with what is below it rewritten."""
        if name in _MAPS and isinstance(value, dict):
            kept[name] = {key: self.rewrite(each) for key, each in value.items()}
        elif (name in _LISTS or name == "items") and isinstance(value, list):
            kept[name] = [self.rewrite(each) for each in value]
        elif name in _SINGLE or name == "items":
            kept[name] = self.rewrite(value)
        elif name in _COUNTS and isinstance(value, float) and value.is_integer():
            kept[name] = int(value)
        elif name == "format" and value not in FORMATS:
            pass
        else:
            kept[name] = value

    # -- rules: what a keyword of a schema asks for, in other schemas that hold as well --------------------------------

    def _not(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        return [self._negated(value)]

    def _one_of(self, value: Sequence[Schema], schema: Mapping[str, Any]) -> list[Schema]:
        """Each branch, where the others are known not to hold."""
        negated = [self._negation.of(each) for each in value]
        if len(value) > 1 and any(each is None for each in negated):
            return [{"oneOf": [self.rewrite(each) for each in value]}]
        branches: list[Schema] = []
        for index, branch in enumerate(value):
            others = [each for i, each in enumerate(negated) if i != index and each is not None]
            branches.append({"allOf": [self.rewrite(branch), *others]})
        return [{"anyOf": branches}]

    def _if(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        """Where the condition's opposite cannot be told, the condition has to hold."""
        if "then" not in schema and "else" not in schema:
            return []
        holds: list[Schema] = [{"allOf": [self.rewrite(value), self.rewrite(schema.get("then", True))]}]
        opposite = self._negation.of(value)
        if opposite is not None:
            holds.append({"allOf": [opposite, self.rewrite(schema.get("else", True))]})
        return [{"anyOf": holds}]

    def _nothing(self, value: Any, schema: Mapping[str, Any]) -> list[Schema]:
        return []

    def _dependencies(self, value: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Schema]:
        """A property is absent, or what depends on it holds."""
        if not isinstance(value, Mapping):
            raise CannotRewrite
        rules: list[Schema] = []
        for name, needed in value.items():
            if isinstance(needed, str):
                needed = [needed]
            then = {"required": list(needed)} if isinstance(needed, list) else self.rewrite(needed)
            if then not in (True, {"required": []}):
                rules.append({"anyOf": [{"properties": {name: False}}, then]})
        return rules

    def _property_names(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        if isinstance(value, bool):
            return [] if value else [{"maxProperties": 0}]
        rest = {name: each for name, each in value.items() if not (name == "type" and each == "string")}
        if not rest:
            return []
        if rest.keys() <= {"minLength", "maxLength"}:
            least, most = int(rest.get("minLength", 0)), rest.get("maxLength")
            pattern = f"^[^]{{{least},{'' if most is None else int(most)}}}$".replace("[^]", r"[\s\S]")
            return [{"patternProperties": {pattern: True}, "additionalProperties": False}]
        if rest.keys() == {"pattern"}:
            return [{"patternProperties": {rest["pattern"]: True}, "additionalProperties": False}]
        if rest.keys() <= {"enum", "const"}:
            names = rest.get("enum", [rest["const"]] if "const" in rest else [])
            known = {name: True for name in names if isinstance(name, str) and rest.get("const", name) == name}
            return [{"properties": known, "additionalProperties": False}]
        raise CannotRewrite

    def _contains(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        """All items match, not only some; or none, where none has to."""
        least, most = schema.get("minContains", 1), schema.get("maxContains")
        if least == 0:
            return [] if most is None else [{"items": self._negated(value)}]
        rule: dict[str, Any] = {"minItems": int(least)}
        if most is not None:
            rule["maxItems"] = int(most)
        if value is not True and value != {}:
            rule["items"] = self.rewrite(value)
        return [rule]

    def _unique_items(self, value: Any, schema: Mapping[str, Any]) -> list[Schema]:
        if value is False or schema.get("maxItems", 2) <= 1:
            return []
        raise CannotRewrite

    def _unevaluated_properties(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        """What a branch evaluates counts in that branch alone, and of several sets of branches in one."""
        return [] if value in (True, {}) else [closed_properties(schema, self._root, self.rewrite(value), self.rewrite)]

    def _unevaluated_items(self, value: Schema, schema: Mapping[str, Any]) -> list[Schema]:
        """Likewise. Items that are contained count as not evaluated."""
        return [] if value in (True, {}) else [closed_items(schema, self._root, self.rewrite(value), self.rewrite)]

    def _recursive_ref(self, value: Any, schema: Mapping[str, Any]) -> list[Schema]:
        if self._has_recursive_anchor:
            raise CannotRewrite
        return [{"$ref": value}]

    def _impossible(self, value: Any, schema: Mapping[str, Any]) -> list[Schema]:
        raise CannotRewrite

    def _negated(self, schema: Schema) -> Schema:
        found = self._negation.of(schema)
        if found is None:
            raise CannotRewrite
        return found


_Rule = Callable[[_Rewriter, Any, Mapping[str, Any]], list[Schema]]
_RULES: dict[str, _Rule] = {
    "not": _Rewriter._not,
    "oneOf": _Rewriter._one_of,
    "if": _Rewriter._if,
    "then": _Rewriter._nothing,
    "else": _Rewriter._nothing,
    "dependencies": _Rewriter._dependencies,
    "dependentRequired": _Rewriter._dependencies,
    "dependentSchemas": _Rewriter._dependencies,
    "propertyNames": _Rewriter._property_names,
    "contains": _Rewriter._contains,
    "minContains": _Rewriter._nothing,
    "maxContains": _Rewriter._nothing,
    "uniqueItems": _Rewriter._unique_items,
    "unevaluatedProperties": _Rewriter._unevaluated_properties,
    "unevaluatedItems": _Rewriter._unevaluated_items,
    "$dynamicAnchor": _Rewriter._nothing,  # it matters to $dynamicRef alone
    "$recursiveAnchor": _Rewriter._nothing,
    "$recursiveRef": _Rewriter._recursive_ref,
    "$dynamicRef": _Rewriter._impossible,
}


def _mentions(value: Any, keyword: str) -> bool:
    if isinstance(value, dict):
        return bool(value.get(keyword)) or any(_mentions(each, keyword) for each in value.values())
    return isinstance(value, list) and any(_mentions(each, keyword) for each in value)
