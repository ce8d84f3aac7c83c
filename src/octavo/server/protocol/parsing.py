"""Turns a client's JSON object into a request model, or into one line that names the field at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

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
            raise invalid(f"{shown(name)} is not a field of this request; leave it out", param=name[:100])
    try:
        return model.model_validate({name: value for name, value in data.items() if name in model.model_fields})
    except ValidationError as error:
        raise _refusal(error, data) from error


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


def _refusal(error: ValidationError, data: Mapping[str, Any]) -> HttpError:
    # Of the forms that a field may have, the one that went furthest is the one that was meant.
    problems = [(_path(each["loc"], data, each["type"]), each) for each in error.errors(include_url=False)]
    path, problem = max(problems, key=lambda pair: len(pair[0]))  # the first of the longest
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind in ("union_tag_invalid", "union_tag_not_found"):  # a message's role, a format's type
        path = (*path, context["discriminator"].strip("'"))
        kind, value = ("tag", context["tag"]) if "tag" in context else ("missing", None)
    field = _written(path)
    if kind == "value_error":  # our own validators; their message names the field
        return invalid(str(context["error"]), param=field or None)
    return invalid(f"{field} {_complaint(kind, value, context, problem['msg'])}", param=field)


def _complaint(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """What is wrong with a field, to be read after its name."""
    if kind == "missing":
        return "is missing; give it"
    if kind == "extra_forbidden":
        return "is not a field of this request; leave it out"
    if kind == "none_required":  # a field of theirs of which no value is taken
        return f"is {shown(value)}, which is not supported; leave it out"
    if kind == "tag":
        return f"is {shown(value)}; it should be {context['expected_tags']}"
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
