"""The input items of a response, and the chat messages that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag
from pydantic.types import Discriminator

from octavo.server.protocol.fields import Label, RequestModel
from octavo.server.protocol.messages import MAX_MESSAGES, MAX_PARTS

Status = Literal["in_progress", "completed", "incomplete"]
_NoItems = Annotated[list[Any], Field(max_length=0)]


class InputText(RequestModel):
    type: Literal["input_text"]
    text: str


class OutputText(RequestModel):
    """Of an earlier answer, which may be sent back as it came."""

    type: Literal["output_text"]
    text: str
    annotations: _NoItems | None = None
    logprobs: _NoItems | None = None


ItemPart = Annotated[InputText | OutputText, Field(discriminator="type")]
ItemParts = Annotated[list[ItemPart], Field(fail_fast=True, min_length=1, max_length=MAX_PARTS)]
ItemContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[ItemParts, Tag("parts")],
    Discriminator(
        lambda value: {str: "text", list: "parts"}.get(type(value)),
        custom_error_type="content",
        custom_error_message="Input should be text or a list of text parts",
    ),
]


class MessageItem(RequestModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    id: Label | None = None
    status: Status | None = None
    phase: None = None


class FunctionCallItem(RequestModel):
    type: Literal["function_call"]
    call_id: Label
    name: Label
    arguments: str
    id: Label | None = None
    status: Status | None = None


class FunctionOutputItem(RequestModel):
    type: Literal["function_call_output"]
    call_id: Label
    output: ItemContent
    id: Label | None = None
    status: Status | None = None


class SummaryText(RequestModel):
    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(RequestModel):
    """Its content is given to the template; where there is none, its summary."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(max_length=MAX_PARTS)] | None = None
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)] | None = None
    id: Label | None = None
    status: Status | None = None
    encrypted_content: None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content or self.summary or ())


def _item_kind(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in _KINDS else None


_KINDS = ("message", "function_call", "function_call_output", "reasoning")
InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _item_kind,
        custom_error_type="item",
        custom_error_message=f"Input should be an item of type {', '.join(_KINDS[:-1])} or {_KINDS[-1]}",
    ),
]
InputItems = Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
ResponseInput = Annotated[
    Annotated[str, Tag("text")] | Annotated[InputItems, Tag("items")],
    Discriminator(
        lambda value: {str: "text", list: "items"}.get(type(value)),
        custom_error_type="input",
        custom_error_message="Input should be text or a list of items",
    ),
]


def chat_messages(given: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages of a chat request. Thinking, words and calls of the assistant in a row are one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in given:
        if isinstance(item, FunctionOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
        elif isinstance(item, FunctionCallItem):
            call = {
                "id": item.call_id,
                "type": "function",
                "function": {"name": item.name, "arguments": item.arguments},
            }
            _assistant(messages).setdefault("tool_calls", []).append(call)
        elif isinstance(item, ReasoningItem):
            if item.text:
                _assistant(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = item.text
        elif item.role == "assistant":
            _assistant(messages, "content", "tool_calls")["content"] = _content(item.content)
        else:
            messages.append({"role": item.role, "content": _content(item.content)})
    return messages


def _assistant(messages: list[dict[str, Any]], *without: str) -> dict[str, Any]:
    """The assistant's message that is the last one, or a new one if it has any of the fields `without`."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in without):
        messages.append({"role": "assistant"})
    return messages[-1]


def _content(content: ItemContent) -> str | list[dict[str, str]]:
    return content if isinstance(content, str) else [{"type": "text", "text": part.text} for part in content]
