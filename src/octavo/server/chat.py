"""/v1/chat/completions: from a request to the generation that answers it, and the JSON of its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from octavo.errors import OctavoError
from octavo.server.answer_frame import AnswerFrame
from octavo.server.chat_generation import prepared_chat
from octavo.server.choice_reader import CallPiece
from octavo.server.fingerprint import system_fingerprint
from octavo.server.generation import CallUsage, ChoiceDelta
from octavo.server.logprobs import chat_logprobs
from octavo.server.protocol.chat import UNSUPPORTED_IN_CHAT, ChatRequest
from octavo.server.protocol.parsing import parse
from octavo.server.state import ServerState
from octavo.server.streaming import GenerationResponse
from octavo.tokenizer import Tokenizer


async def answer_chat(state: ServerState, body: dict[str, Any]) -> GenerationResponse:
    """The answer to the request that `body` is. Raises an `OctavoError` for one that cannot be served."""
    request = parse(ChatRequest, body, UNSUPPORTED_IN_CHAT)
    chat = await prepared_chat(state, request)
    generation = chat.generation(state, "chatcmpl")
    frame = AnswerFrame(
        generation,
        chat.model,
        system_fingerprint(chat.info),
        whole_kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        with_usage=request.streams_usage,
    )
    answer = ChatAnswer(
        frame,
        chat.tokenizer,
        with_logprobs=request.num_logprobs is not None,
        may_call=chat.reading.tools is not None,
    )
    return GenerationResponse(generation, answer, stream=bool(request.stream), keep_alive_s=state.settings.keep_alive_s)


class ChatAnswer:
    """Writes chat completions and their chunks."""

    def __init__(
        self, frame: AnswerFrame, tokenizer: Tokenizer, *, with_logprobs: bool, may_call: bool = False
    ) -> None:
        """With `may_call` an answer may have calls and no content at all."""
        self._frame = frame
        self._may_call = may_call
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Each choice begins with a chunk that has the role, and ends with one that has nothing but the reason."""
        written: list[str] = []
        for delta in deltas:
            said = _said(delta)
            if delta.index not in self._begun:
                self._begun.add(delta.index)
                content = "null" if self._may_call and not delta.text else '""'
                written.append(self._chunk(delta.index, f'{{"role":"assistant","content":{content}}}'))
            scores = self._logprobs(delta)
            for piece in said:
                written.append(self._chunk(delta.index, piece, scores))
                scores = "null"
            if delta.finish_reason is not None:
                written.append(self._chunk(delta.index, "{}", reason=f'"{delta.finish_reason}"'))
        return "".join(written).encode("ascii")

    def _chunk(self, index: int, delta: str, logprobs: str = "null", reason: str = "null") -> str:
        return self._frame.chunk(f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}')

    def _logprobs(self, delta: ChoiceDelta) -> str:
        return json.dumps(chat_logprobs(self._tokenizer, delta.scored)) if self._with_logprobs else "null"

    def ending(self, usage: CallUsage) -> bytes:
        return self._frame.ending(usage)

    def failure(self, error: OctavoError) -> bytes:
        return self._frame.failure(error)

    def whole(self, choices: Sequence[ChoiceDelta], usage: CallUsage) -> bytes:
        told = [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": chat_logprobs(self._tokenizer, choice.scored) if self._with_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._frame.whole(told, usage)


def _said(delta: ChoiceDelta) -> list[str]:
    """The `delta` objects of what is said, in order. Tokens without text of their own have an empty one."""
    said = []
    if delta.reasoning:
        said.append(f'{{"reasoning_content":{encode_basestring_ascii(delta.reasoning)}}}')
    if delta.text:
        said.append(f'{{"content":{encode_basestring_ascii(delta.text)}}}')
    said += [f'{{"tool_calls":[{_call_piece(piece)}]}}' for piece in delta.calls]
    if delta.scored and not said:
        said.append("{}")
    return said


def _call_piece(piece: CallPiece) -> str:
    function: dict[str, Any] = {"arguments": piece.arguments}
    if piece.name is None:
        return json.dumps({"index": piece.index, "function": function})
    function = {"name": piece.name, **function}
    return json.dumps({"index": piece.index, "id": piece.call_id, "type": "function", "function": function})


def _message(choice: ChoiceDelta) -> dict[str, Any]:
    """OpenAI's message; `reasoning_content` and `tool_calls` are there only where there are any."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": first.call_id,
                "type": "function",
                "function": {
                    "name": first.name,
                    "arguments": "".join(each.arguments for each in choice.calls if each.index == first.index),
                },
            }
            for first in choice.calls
            if first.name is not None
        ]
    return message
