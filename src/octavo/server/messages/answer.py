"""Writes an answer as Anthropic's message, whole or as the events of its stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo.errors import OctavoError
from octavo.server.answer_parts import AnswerPart, AnswerParts, PartChange, parts_of
from octavo.server.generation import CallUsage, ChoiceDelta, Generation
from octavo.server.messages.errors import error_event


class MessageAnswer:
    """The answer to one request, which has one choice."""

    def __init__(self, generation: Generation, model: str, max_tokens: int) -> None:
        self._generation = generation
        self._message = {
            "id": generation.call_id.replace("-", "_", 1),
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._max_tokens = max_tokens
        self._cut = AnswerParts()
        self._begun = False
        self._last: ChoiceDelta | None = None

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The first event has the message without content, and the tokens of the prompt."""
        written: list[bytes] = []
        if not self._begun:
            self._begun = True
            usage = {**usage_object(self._generation.usage), "output_tokens": 0}
            begun: dict[str, Any] = {
                **self._message,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            }
            written.append(_event("message_start", message=begun))
        for delta in deltas:
            self._last = delta
            written += [event for change in self._cut.take(delta) for event in _events_of(change)]
        return b"".join(written)

    def ending(self, usage: CallUsage) -> bytes:
        assert self._last is not None, "a stream ended without a delta"
        told = _event("message_delta", delta=self._stop(self._last, usage), usage=usage_object(usage))
        return told + _event("message_stop")

    def failure(self, error: OctavoError) -> bytes:
        return error_event(error)

    def whole(self, choices: Sequence[ChoiceDelta], usage: CallUsage) -> bytes:
        (choice,) = choices
        content = [_block(part) for part in parts_of(choice)]
        message = {**self._message, "content": content, **self._stop(choice, usage), "usage": usage_object(usage)}
        return json.dumps(message, separators=(",", ":")).encode("ascii")

    def _stop(self, last: ChoiceDelta, usage: CallUsage) -> dict[str, Any]:
        """Why it ended, and with which stop sequence."""
        if last.finish_reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if last.finish_reason == "length":
            by_limit = usage.completion_tokens >= self._max_tokens
            reason = "max_tokens" if by_limit else "model_context_window_exceeded"
            return {"stop_reason": reason, "stop_sequence": None}
        reason = "end_turn" if last.stop_string is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": last.stop_string}


def usage_object(usage: CallUsage) -> dict[str, Any]:
    """Anthropic counts cached tokens apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _block(part: AnswerPart) -> dict[str, Any]:
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if part.kind == "text":
        return {"type": "text", "text": part.text, "citations": None}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": _input(part.text)}


def _input(arguments: str) -> dict[str, Any]:
    """An object, as clients expect; what is none is the one member INVALID_JSON, as Anthropic's guide has it."""
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": arguments}


def _events_of(change: PartChange) -> list[bytes]:
    part = change.part
    if change.change == "begins":
        empty = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
        block = empty if part.kind == "call" else _block(part)
        return [_event("content_block_start", index=part.number, content_block=block)]
    if change.change == "ends":
        return [_event("content_block_stop", index=part.number)]
    delta = {
        "reasoning": {"type": "thinking_delta", "thinking": change.text},
        "text": {"type": "text_delta", "text": change.text},
        "call": {"type": "input_json_delta", "partial_json": change.text},
    }[part.kind]
    return [_event("content_block_delta", index=part.number, delta=delta)]


def _event(name: str, /, **fields: Any) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode("ascii")
