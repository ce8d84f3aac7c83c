"""Splits a stream of server-sent events, and reads OpenAI completion chunks out of them. Knows no sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_EVENT = 4 << 20  # bytes that may be waiting for the end of an event


class EventSplitter:
    """Bytes in, the `data` of complete events out. Comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes. Raises `ValueError` on an event that never ends."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
            data = data.replace(b"\r\n", b"\n")
        else:
            held = b""
        *events, rest = data.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT:
            raise ValueError(f"an event of more than {MAX_EVENT} bytes")
        return [found for event in events if (found := _data_of(event))]


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly every one
        return event[6:]
    fields = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(fields)


class Answer:
    """One streamed answer as it arrives.

    `arrivals` holds the time of every chunk that carried output (role chunks, the closing chunk and the one with the
    usage do not count), `chunk_tokens` how many tokens each carried where it said so by log-probabilities or token
    ids, else 0. `done` is set by `[DONE]`.
    """

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.chunk_tokens: list[int] = []
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False

    def take(self, data: bytes, now: float) -> None:
        """Read one event that arrived at `now`. What is no completion chunk sets `error`."""
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            self.error = f"an event is no JSON: {data[:80]!r}"
            return
        if not isinstance(chunk, dict):
            self.error = f"an event is no JSON object: {data[:80]!r}"
        elif chunk.get("error"):
            self.error = f"the stream broke off: {error_message(chunk)}"
        else:
            self._take_chunk(chunk, now)

    def _take_chunk(self, chunk: Mapping[str, Any], now: float) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                self.error = f"a choice is no JSON object: {str(choice)[:80]}"
                return
            if choice.get("finish_reason") is not None:
                self.finish_reason = str(choice["finish_reason"])
            tokens = _num_tokens(choice)
            if tokens or _has_text(choice):
                self.arrivals.append(now)
                self.chunk_tokens.append(tokens)


def error_message(body: Mapping[str, Any]) -> str:
    """The text of an OpenAI error object, or of one in another shape."""
    error = body.get("error", body)
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]


def _has_text(choice: Mapping[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    # Reasoning and tool calls have names of their own; the role alone is no output.
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _num_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens that the chunk says it carries; 0 if it does not say."""
    token_ids = choice.get("token_ids")
    if isinstance(token_ids, list):
        return len(token_ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        listed = logprobs.get("content") or logprobs.get("tokens")
        return len(listed) if isinstance(listed, list) else 0
    return 0


def _count(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) else otherwise
