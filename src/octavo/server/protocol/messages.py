"""The messages of a chat request, one model for each role. What a template makes of them is the tokenizer's matter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic.types import Discriminator

from octavo.server.protocol.fields import Label, RequestModel

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOL_CALLS = 128
MAX_TEMPLATE_VARIABLES = 64
_RESERVED_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt"})


class TextPart(RequestModel):
    """The one kind of content part there is. Images, audio and files are refused by their type."""

    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], Field(fail_fast=True, min_length=1, max_length=MAX_PARTS)]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[Parts, Tag("parts")],
    Discriminator(
        lambda value: {str: "text", list: "parts"}.get(type(value)),
        custom_error_type="content",
        custom_error_message="Input should be text or a list of text parts",
    ),
]


class SystemMessage(RequestModel):
    role: Literal["system"]
    content: Content
    name: Label | None = None


class DeveloperMessage(RequestModel):
    role: Literal["developer"]
    content: Content
    name: Label | None = None


class UserMessage(RequestModel):
    role: Literal["user"]
    content: Content
    name: Label | None = None


class CalledFunction(RequestModel):
    name: Label
    arguments: str


class ToolCall(RequestModel):
    """A call that the model made in an earlier turn."""

    id: Label
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(RequestModel):
    """Answers may be sent back as they came: the nulls and empty lists in them are accepted."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Label | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOL_CALLS)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolMessage(RequestModel):
    role: Literal["tool"]
    content: Content
    tool_call_id: Label
    name: Label | None = None


ChatMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
Messages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


def _no_reserved(variables: dict[str, Any]) -> dict[str, Any]:
    for name in variables:
        if name in _RESERVED_VARIABLES:
            raise ValueError(f"chat_template_kwargs names {name}, which the request itself sets; leave it out")
    return variables


TemplateVariables = Annotated[dict[Label, Any], Field(max_length=MAX_TEMPLATE_VARIABLES), AfterValidator(_no_reserved)]

_NOT_FOR_TEMPLATES = ("refusal", "audio", "function_call", "annotations")


def template_messages(messages: list[ChatMessage], template: str | None) -> list[dict[str, Any]]:
    """The messages as the tokenizer's template takes them.

    `developer` is `system` unless `template`, the template's source, knows the role.
    """
    native = template is not None and "developer" in template
    written = []
    for message in messages:
        fields = message.model_dump(exclude_none=True)
        for name in _NOT_FOR_TEMPLATES:
            fields.pop(name, None)
        if not fields.get("tool_calls", True):
            del fields["tool_calls"]
        if fields["role"] == "developer" and not native:
            fields["role"] = "system"
        written.append(fields)
    return written


def template_variables(given: dict[str, Any] | None, add_generation_prompt: bool | None) -> dict[str, Any]:
    """What a template gets besides the messages; the answer's beginning is added unless that was declined."""
    return {**(given or {}), "add_generation_prompt": add_generation_prompt is not False}
