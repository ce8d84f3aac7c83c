"""Turns a client's JSON object into a request model, or into one line that names the field at fault."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from octavo.errors import InvalidRequest, shown
from octavo.server.errors import HttpError, invalid
from octavo.server.protocol.fields import RequestModel

Model = TypeVar("Model", bound=RequestModel)


def parse(model: type[Model], data: Mapping[str, Any], unsupported: Mapping[str, Unsupported] | None = None) -> Model:
    """`data` as `model`. Raises a 400 `HttpError` whose `param` is the path of the first field that cannot be."""
    for name, value in data.items():
        refusal = (unsupported or {}).get(name)
        if refusal is not None:
            refusal.check(name, value)
        elif name not in model.model_fields:
            raise invalid(f"{shown(name)} {_unknown(name, [model], data)}", param=name[:100])
    try:
        return model.model_validate({name: value for name, value in data.items() if name in model.model_fields})
    except ValidationError as error:
        raise _refusal(error, data, model) from error


class Unsupported:
    """A field that OpenAI knows and this server does not act on, except for values that ask for nothing."""

    def __init__(self, remedy: str, *harmless: Any) -> None:
        """`remedy` completes "… is not supported: "; null is always harmless."""
        self._remedy = remedy
        self._harmless = harmless

    def check(self, name: str, value: Any) -> None:
        """Raises a 400 `HttpError` naming the field unless `value` asks for nothing."""
        if value is None or any(type(value) is type(each) and value == each for each in self._harmless):
            return
        raise invalid(f"{name} is not supported: {self._remedy}", param=name, code="unsupported_parameter")


def named(error: InvalidRequest, model: type[RequestModel]) -> HttpError:
    """`error` with the field that its message begins with as `param`, if it does."""
    message = str(error)
    word = message.split(" ", 1)[0].split("[", 1)[0]
    return invalid(message, param=word if word in model.model_fields else None)


def _refusal(error: ValidationError, data: Mapping[str, Any], model: type[RequestModel]) -> HttpError:
    # Of the forms that a field may have, the one that went furthest is the one that was meant. Of fields at one depth
    # one that is unknown may be a missing one misspelt, and says so.
    problems = [(_path(each["loc"], data, each["type"]), each) for each in error.errors(include_url=False)]
    deepest = max(len(path) for path, _ in problems)
    problems = [each for each in problems if len(each[0]) == deepest]
    unknown = [each for each in problems if each[1]["type"] == "extra_forbidden"]
    path, problem = unknown[0] if unknown and problems[0][1]["type"] == "missing" else problems[0]
    if problem["type"] == "extra_forbidden":
        owners, owner = _models_at(model, path[:-1]), _value_at(data, path[:-1])
        field = _written(path)
        return invalid(f"{field} {_unknown(str(path[-1]), owners, owner)}", param=field)
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind in ("union_tag_invalid", "union_tag_not_found"):  # a message's role, a format's type
        tag = context["discriminator"].strip("'")
        near = (
            difflib.get_close_matches(tag, list(value), n=1) if kind.endswith("not_found") and tag not in value else []
        )
        if near:
            field = _written((*path, near[0]))
            return invalid(f"{field} is not a field of this request; did you mean {tag!r}?", param=field)
        path = (*path, tag)
        kind, value = ("tag", context["tag"]) if "tag" in context else ("missing", None)
    field = _written(path)
    if kind == "value_error":  # our own validators; their message names the field
        return invalid(str(context["error"]), param=field or None)
    return invalid(f"{field} {_complaint(kind, value, context, problem['msg'])}", param=field)


def _complaint(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """What is wrong with a field, to be read after its name."""
    if kind == "missing":
        return "is missing; give it"
    if kind == "none_required":  # a field of theirs of which no value is taken
        return f"is {shown(value)}, which is not supported; leave it out"
    if kind == "tag":
        return f"is {shown(value)}; it should be {_alternatives(context['expected_tags'])}"
    if kind in ("too_long", "too_short"):
        least, most = context.get("min_length"), context.get("max_length")
        bound = f"at least {least}" if most is None else f"at most {most}"
        return f"has {len(value)} items; give {bound}"
    if kind == "string_too_long":
        return f"has {len(value)} characters; give at most {context['max_length']}"
    if kind == "string_too_short":
        return "is empty; give some text, or leave it out"
    if kind == "string_pattern_mismatch":
        if "a-z" in context["pattern"]:
            return f"is {shown(value)}; give 1 to 64 letters, digits, underscores or hyphens"
        return f"is {shown(value)}; only whole numbers of at least 0 are taken here"
    expected = message.removeprefix("Input should ").removeprefix("be ")
    remedy = "; only text parts are taken" if context.get("expected") == "'text'" else ""
    return f"is {shown(value)}; it should be {expected}{remedy}"


def _unknown(name: str, owners: Sequence[type[RequestModel]], given: Mapping[str, Any]) -> str:
    """What is wrong with the field `name`, which none of `owners` has: the one that was meant, and what is missing."""
    fields = {each.alias or own: each for owner in owners for own, each in owner.model_fields.items()}
    near = difflib.get_close_matches(name, [field for field in fields if field not in given], n=1)
    missing = []
    if len(owners) == 1:
        missing = [field for field, each in fields.items() if each.is_required() and field not in [*given, *near]]
    remedy = f"did you mean {near[0]!r}?" if near else "leave it out"
    also = f"{' A' if near else '; a'}nd {missing[0]!r} is missing, give it" if missing else ""
    return f"is not a field of this request; {remedy}{also}"


def _models_at(model: type[RequestModel], path: Sequence[int | str]) -> list[type[RequestModel]]:
    """The models that the object at `path` may have been meant for."""
    found = [model]
    for step in path:
        if isinstance(step, str):
            fields = [
                each for owner in found for name, each in owner.model_fields.items() if step in (name, each.alias)
            ]
            found = [each for field in fields for each in _models_in(field.annotation)]
    return found


def _models_in(annotation: Any) -> Iterator[type[RequestModel]]:
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, RequestModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


def _value_at(data: Any, path: Sequence[int | str]) -> Mapping[str, Any]:
    for step in path:
        data = data[step]
    return data if isinstance(data, Mapping) else {}


def _alternatives(tags: str) -> str:
    """`'a', 'b', 'c'` as `'a', 'b' or 'c'`."""
    first, comma, last = tags.rpartition(", ")
    return f"{first} or {last}" if comma else tags


def _path(loc: tuple[int | str, ...], data: Any, kind: str) -> tuple[int | str, ...]:
    """`loc` without the names of types that pydantic puts between those of fields."""
    path: list[int | str] = []
    for step in loc:
        known = isinstance(data, Mapping) and step in data
        if known or (isinstance(data, list) and isinstance(step, int)):
            data = data[step]
            path.append(step)
    if kind == "missing":
        path.append(loc[-1])
    return tuple(path)


def _written(path: tuple[int | str, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.100}" for step in path)
    return text.removeprefix(".")
