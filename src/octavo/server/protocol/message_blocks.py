"""The messages of Anthropic's API, which are blocks, and the chat messages that they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag
from pydantic.types import Discriminator

from octavo.server.protocol.fields import Label, RequestModel
from octavo.server.protocol.messages import MAX_MESSAGES, MAX_PARTS

ERROR_PREFIX = "Error: "  # before the result of a call that failed, for templates have no other way to say so


class CacheControl(RequestModel):
    """Accepted: prefixes are cached by themselves."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: Label
    name: Label
    input: dict[str, Any]
    cache_control: CacheControl | None = None


def _text_or_blocks(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "blocks" if isinstance(value, list) else None


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True, max_length=MAX_PARTS)]
TextContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[TextBlocks, Tag("blocks")],
    Discriminator(
        _text_or_blocks,
        custom_error_type="content",
        custom_error_message="Input should be text or a list of text blocks",
    ),
]


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: Label
    content: TextContent | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
_BLOCKS = Field(fail_fast=True, min_length=1, max_length=MAX_PARTS)


class UserTurn(RequestModel):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[UserBlock], _BLOCKS, Tag("blocks")],
        Discriminator(
            _text_or_blocks,
            custom_error_type="content",
            custom_error_message="Input should be text or a list of text and tool_result blocks",
        ),
    ]


class AssistantTurn(RequestModel):
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[AssistantBlock], _BLOCKS, Tag("blocks")],
        Discriminator(
            _text_or_blocks,
            custom_error_type="content",
            custom_error_message="Input should be text or a list of text, thinking and tool_use blocks",
        ),
    ]


class SystemTurn(RequestModel):
    role: Literal["system"]
    content: TextContent


Turns = Annotated[
    list[Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]],
    Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES // 2),
]


def chat_messages(system: TextContent | None, turns: Turns) -> list[dict[str, Any]]:
    """The messages of a chat request. Results of calls are messages of their own, before a user's words."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _content(system)})
    for turn in turns:
        if isinstance(turn, AssistantTurn):
            messages.append(_assistant(turn))
        elif isinstance(turn, SystemTurn):
            messages.append({"role": "system", "content": _content(turn.content)})
        elif isinstance(turn.content, str):
            messages.append({"role": "user", "content": turn.content})
        else:
            messages += _user(turn.content)
    return messages


def _user(blocks: Sequence[UserBlock]) -> list[dict[str, Any]]:
    results = [_result(block) for block in blocks if isinstance(block, ToolResultBlock)]
    words = [block for block in blocks if isinstance(block, TextBlock)]
    return [*results, {"role": "user", "content": _content(words)}] if words else results


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content = block.content or ""
    text = content if isinstance(content, str) else "\n".join(each.text for each in content)
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "content": f"{ERROR_PREFIX}{text}" if block.is_error else text,
    }


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    message: dict[str, Any] = {"role": "assistant"}
    words = [block for block in turn.content if isinstance(block, TextBlock)]
    if words:
        message["content"] = _content(words)
    thinking = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    if thinking:
        message["reasoning_content"] = "\n".join(thinking)
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)},
        }
        for block in turn.content
        if isinstance(block, ToolUseBlock)
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _content(content: str | Sequence[TextBlock]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": block.text} for block in content] or ""
