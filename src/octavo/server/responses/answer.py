"""Writes a response, whole or as the events of its stream, and keeps it if it is to be kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from octavo.errors import OctavoError
from octavo.server.answer_parts import AnswerPart, AnswerParts, PartChange, parts_of
from octavo.server.errors import http_error
from octavo.server.generation import CallUsage, ChoiceDelta, Generation
from octavo.server.protocol.responses import ChosenFunctionTool, ResponseRequest
from octavo.tokenizer import Tokenizer

Status = Literal["in_progress", "completed", "incomplete", "failed"]
# Called with the response's id, its JSON, and the assistant's message of it, when the response is complete.
Keep = Callable[[str, bytes, dict[str, Any]], None]


class ResponseAnswer:
    """The answer to `request`. One choice only."""

    def __init__(
        self, generation: Generation, model: str, request: ResponseRequest, tokenizer: Tokenizer, keep: Keep | None
    ) -> None:
        self._id = generation.call_id.replace("-", "_", 1)
        self._hex = self._id.partition("_")[2]
        self._model = model
        self._created = generation.created
        self._request = request
        self._tokenizer = tokenizer
        self._keep = keep
        self._cut = AnswerParts()
        self._sequence = 0
        self._cut_short = False

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The first events tell of the response itself."""
        written: list[bytes] = []
        if self._sequence == 0:
            begun = self._response("in_progress")
            written += [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]
        for delta in deltas:
            self._cut_short = delta.finish_reason == "length"
            for change in self._cut.take(delta):
                written += self._events_of(change)
        return b"".join(written)

    def ending(self, usage: CallUsage) -> bytes:
        """The whole response once more."""
        status: Status = "incomplete" if self._cut_short else "completed"
        response = self._complete(status, self._cut.parts, usage)
        return self._event(f"response.{status}", response=response)

    def failure(self, error: OctavoError) -> bytes:
        """A failed response, which is not kept."""
        told = http_error(error)
        code = "rate_limit_exceeded" if told.status == 429 else "server_error"
        failed = {**self._response("failed", self._cut.parts), "error": {"code": code, "message": str(told)}}
        return self._event("response.failed", response=failed)

    def whole(self, choices: Sequence[ChoiceDelta], usage: CallUsage) -> bytes:
        (choice,) = choices
        self._cut_short = choice.finish_reason == "length"
        status: Status = "incomplete" if self._cut_short else "completed"
        return _json(self._complete(status, parts_of(choice), usage))

    def _complete(self, status: Status, parts: list[AnswerPart], usage: CallUsage) -> dict[str, Any]:
        response = self._response(status, parts)
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens(parts, usage)},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if status == "completed":
            response["completed_at"] = int(time.time())
        if self._keep is not None:
            self._keep(self._id, _json(response), _message(parts))
        return response

    def _num_reasoning_tokens(self, parts: list[AnswerPart], usage: CallUsage) -> int:
        """Of the text, encoded again: which tokens were a marker's and which its neighbours' is not known."""
        texts = [part.text for part in parts if part.kind == "reasoning"]
        counted = sum(len(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return min(counted, usage.completion_tokens)

    def _response(self, status: Status, parts: list[AnswerPart] | None = None) -> dict[str, Any]:
        request, choice = self._request, self._request.tool_choice
        last = "incomplete" if status in ("incomplete", "failed") else "completed"
        told = parts or []
        items = [self._item(part, last if part is told[-1] else "completed") for part in told]
        asked = request.model_dump(mode="json", by_alias=True, exclude_none=True, include={"tools", "text"})
        tools = [{"description": None, "parameters": None, "strict": False, **tool} for tool in asked.get("tools", [])]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": items,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": self._keep is not None,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": {"type": "text"}, "verbosity": "medium", **asked.get("text", {})},
            "tool_choice": choice.model_dump() if isinstance(choice, ChosenFunctionTool) else choice or "auto",
            "tools": tools,
            "top_logprobs": 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": request.user,
        }

    def _item(self, part: AnswerPart, status: str, *, empty: bool = False) -> dict[str, Any]:
        """An output item; `empty` as its stream begins it."""
        item_id = self._item_id(part)
        if part.kind == "call":
            arguments = "" if empty else part.text
            call = {"id": item_id, "type": "function_call", "status": status, "call_id": part.call_id}
            return {**call, "name": part.name, "arguments": arguments}
        content = [] if empty else [_content_part(part)]
        if part.kind == "reasoning":
            return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _item_id(self, part: AnswerPart) -> str:
        prefix = {"text": "msg", "reasoning": "rs", "call": "fc"}[part.kind]
        return f"{prefix}_{self._hex}{part.number:04x}"

    def _events_of(self, change: PartChange) -> list[bytes]:
        part = change.part
        if change.change == "begins":
            return self._begun(part)
        if change.change == "grows":
            name = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}[part.kind]
            return [self._part_event(f"{name}.delta", part, delta=change.text, **_no_logprobs(part))]
        return self._ended(part)

    def _begun(self, part: AnswerPart) -> list[bytes]:
        item = self._item(part, "in_progress", empty=True)
        events = [self._event("response.output_item.added", output_index=part.number, item=item)]
        if part.kind != "call":
            events.append(self._part_event("content_part.added", part, part=_content_part(part)))
        return events

    def _ended(self, part: AnswerPart) -> list[bytes]:
        if part.kind == "call":
            told = {"name": part.name, "arguments": part.text}
            events = [self._part_event("function_call_arguments.done", part, **told)]
        else:
            name = "output_text" if part.kind == "text" else "reasoning_text"
            events = [
                self._part_event(f"{name}.done", part, text=part.text, **_no_logprobs(part)),
                self._part_event("content_part.done", part, part=_content_part(part)),
            ]
        item = self._item(part, "incomplete" if self._cut_short else "completed")
        return [*events, self._event("response.output_item.done", output_index=part.number, item=item)]

    def _part_event(self, name: str, part: AnswerPart, /, **fields: Any) -> bytes:
        where: dict[str, Any] = {"item_id": self._item_id(part), "output_index": part.number}
        if part.kind != "call":
            where["content_index"] = 0
        return self._event(f"response.{name}", **where, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = _json({"type": name, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


def _no_logprobs(part: AnswerPart) -> dict[str, Any]:
    return {"logprobs": []} if part.kind == "text" else {}


def _content_part(part: AnswerPart) -> dict[str, Any]:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def _message(parts: list[AnswerPart]) -> dict[str, Any]:
    """The answer as the assistant's message of a chat request."""
    texts = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("text", "reasoning")}
    message: dict[str, Any] = {"role": "assistant", "content": texts["text"]}
    if texts["reasoning"]:
        message["reasoning_content"] = texts["reasoning"]
    calls = [
        {"id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": part.text}}
        for part in parts
        if part.kind == "call"
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
