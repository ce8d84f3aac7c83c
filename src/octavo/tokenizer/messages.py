"""Checks chat messages and tools, and puts them into the shape a chat template expects. It renders nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequest

Message = dict[str, Any]

_TEXT_PART_TYPES = ("text", "input_text", "output_text")


def plain_data(value: Any, where: str) -> Any:
    """A deep copy of `value` in plain JSON types, so that a template meets no object with methods of its own.

    Raises InvalidRequest, naming `where`, for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {plain_data(key, where): plain_data(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, where) for item in value]
    raise InvalidRequest(f"{where} holds a {type(value).__name__}; only JSON values can be given to a chat template")


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest unless `messages` is a non-empty list of objects that each have a role."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages is empty or not a list; give at least one message with a role and content")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{index}] has no role; give an object with role and content")


def normalize_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    takes_strings: bool,
    takes_parts: bool,
    text_arguments: bool = False,
    null_content: bool = False,
) -> list[Message]:
    """Checked messages as the template expects them; the input is not changed.

    Null fields are dropped; missing content is empty text (null beside tool calls with `null_content`); text parts
    become one text, joined by line feeds, unless the template takes parts; tool-call arguments become mappings where
    they are JSON objects, or text with `text_arguments`. Raises InvalidRequest.
    """
    normalized = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        fields = {key: plain_data(value, where) for key, value in message.items() if value is not None}
        _normalize_tool_calls(fields, where, as_text=text_arguments)
        if null_content and "tool_calls" in fields and not fields.get("content"):
            fields["content"] = None
        else:
            fields["content"] = _content(fields.get("content", ""), where, takes_strings, takes_parts)
        normalized.append(fields)
    return normalized


def normalize_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as plain data, or None where there are none. Raises InvalidRequest."""
    if not tools:
        return None
    if isinstance(tools, (str, bytes)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidRequest("tools is not a list of objects; give each tool as {type, function}")
    return [plain_data(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _content(content: Any, where: str, takes_strings: bool, takes_parts: bool) -> Any:
    if isinstance(content, str):
        return content if takes_strings or not takes_parts else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}.content is {type(content).__name__}; give text or a list of text parts")
    texts = [_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return [{"type": "text", "text": text} for text in texts] if takes_parts else "\n".join(texts)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in _TEXT_PART_TYPES:
        raise InvalidRequest(f"{where} has type {kind!r}; this model takes text parts only ({{type: text, text: …}})")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text is {type(text).__name__}; give a string")
    return text


def _normalize_tool_calls(message: Message, where: str, *, as_text: bool) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest(f"{where}.tool_calls is not a list of objects; give each as {{function: …}}")
    if not calls:
        del message["tool_calls"]
    for call in calls:
        function = call.get("function", call)
        if isinstance(function, dict) and "arguments" in function:
            function["arguments"] = _arguments(function["arguments"], as_text=as_text)


def _arguments(arguments: Any, *, as_text: bool) -> Any:
    if as_text:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:  # the model wrote it, the user cannot mend it: it stays the text that it is
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
