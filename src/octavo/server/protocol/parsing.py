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
    field = _written(path)
    kind, message = problem["type"], problem["msg"]
    if kind == "missing":
        return invalid(f"{field} is missing; give it", param=field)
    if kind == "extra_forbidden":
        return invalid(f"{field} is not a field of this request; leave it out", param=field)
    if kind == "value_error":  # our own validators; their message names the field
        return invalid(str(problem["ctx"]["error"]), param=field or None)
    if message.startswith("Input should"):
        message = f"it should{message.removeprefix('Input should')}"
    got = shown(problem["input"])
    return invalid(f"{field} is {got}; {message[:1].lower()}{message[1:]}", param=field)


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
