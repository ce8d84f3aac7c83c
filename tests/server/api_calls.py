"""Calls of the generation API over the fake engine, held to the declared shapes, and server-sent events read back."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from asgi_calls import JSON, Answer, call, fake_app
from fake_engine import FakeEngine
from fastapi import FastAPI
from pydantic import BaseModel

from octavo.server.protocol.answers import ChatCompletion, Completion
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
_SHAPES: dict[str, type[BaseModel]] = {CHAT: ChatCompletion, COMPLETIONS: Completion}


@cache
def _one_app() -> FastAPI:
    """Putting an application together takes longer than most calls do."""
    return fake_app()


def app_over(engine: FakeEngine | None, **settings: Any) -> FastAPI:
    """An application that serves `engine`; the one before is the same object, and serves it too."""
    app = _one_app()
    app.state.octavo = ServerState(engine or FakeEngine(), ServerSettings(**settings))
    return app


def post(path: str, body: dict[str, Any] | bytes, engine: FakeEngine | None = None, **settings: Any) -> Answer:
    """POST an object, or bytes as they are."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return call(app_over(engine, **settings), "POST", path, [JSON], raw)


def chat(engine: FakeEngine | None = None, **fields: Any) -> Answer:
    return post(CHAT, {"messages": HI, **fields}, engine)


def complete(prompt: Any, engine: FakeEngine | None = None, **fields: Any) -> Answer:
    return post(COMPLETIONS, {"prompt": prompt, **fields}, engine)


def whole(path: str, body: dict[str, Any], engine: FakeEngine | None = None, **settings: Any) -> dict[str, Any]:
    """The whole answer, which must be a 200 of the declared shape."""
    answer = post(path, body, engine, **settings)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    _SHAPES[path].model_validate_json(answer.body)
    return found


def events_of(body: bytes) -> list[Any]:
    """The data of server-sent events in order: JSON, or the text [DONE]. Comments are left out."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode("ascii").removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def streamed(path: str, body: dict[str, Any], engine: FakeEngine | None = None) -> list[dict[str, Any]]:
    """The chunks of a stream that must end well, without the [DONE] at its end."""
    answer = post(path, {**body, "stream": True}, engine)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.body
    *chunks, done = events_of(answer.body)
    assert done == "[DONE]"
    return chunks


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """The joined text of each choice."""
    texts: dict[int, str] = {}
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts


def reasons_of(chunks: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The finish reasons that are not null, by choice."""
    reasons: dict[int, list[str]] = {}
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        assert "finish_reason" in choice
        if choice["finish_reason"] is not None:
            reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return reasons
