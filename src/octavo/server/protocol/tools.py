"""The tools that a chat request offers, and which of them it wants called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, Tag
from pydantic.types import Discriminator

from octavo.errors import shown
from octavo.server.errors import invalid
from octavo.server.protocol.fields import Label, RequestModel, limited

MAX_TOOLS = 128
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "object")
    if kind != "object":
        raise ValueError(f"parameters are of type {shown(kind)}; give the JSON schema of an object")
    properties = schema.get("properties")
    if not isinstance(properties, dict | None):
        raise ValueError(f"parameters have properties {shown(properties)}; give an object of schemas")
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise ValueError(f"parameters have required {shown(required)}; give a list of names")
    return schema


_OBJECT_SCHEMA: dict[str, Any] = {
    "properties": {
        "type": {"const": "object"},
        "properties": {"type": "object"},
        "required": {"type": "array", "items": {"type": "string"}},
    }
}
Parameters = Annotated[dict[str, Any], AfterValidator(_of_an_object), Field(json_schema_extra=_OBJECT_SCHEMA)]


class Function(RequestModel):
    """With `strict` its arguments are held to `parameters` whenever the model calls it."""

    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: Function


class ChosenFunction(RequestModel):
    name: Label


class ChosenTool(RequestModel):
    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS, json_schema_extra=limited("tools"))]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")] | Annotated[ChosenTool, Tag("tool")],
    Discriminator(
        lambda value: {str: "word", dict: "tool"}.get(type(value)),
        custom_error_type="tool_choice",
        custom_error_message="Input should be none, auto, required, or {type, function: {name}}",
    ),
    Field(json_schema_extra=limited("tool choice")),
]
# For the JSON schema, a part of what `check_tools` refuses.
CHOICE_NEEDS_TOOLS: dict[str, Any] = {
    "anyOf": [
        {"properties": {"tool_choice": {"enum": ["none", "auto", None]}}},
        {"properties": {"tools": {"type": "array", "minItems": 1}}, "required": ["tools"]},
    ]
}


def check_tools(tools: list[Tool] | None, choice: ToolChoice | None) -> None:
    """Raises a 400 `HttpError` for two tools of one name, or a choice of what is not offered."""
    names: set[str] = set()
    for number, tool in enumerate(tools or ()):
        if tool.function.name in names:
            raise invalid(
                f"tools[{number}].function.name is {shown(tool.function.name)} once more; give each tool its own name",
                param=f"tools[{number}].function.name",
            )
        names.add(tool.function.name)
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise invalid(
            f"tool_choice names {shown(choice.function.name)}, which is not among the tools; offer it too",
            param="tool_choice",
        )
    if choice == "required" and not names:
        raise invalid(
            "tool_choice is required and there are no tools; offer some, or leave it out", param="tool_choice"
        )
