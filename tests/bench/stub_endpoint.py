"""An OpenAI-compatible endpoint without a model: answers, refuses, lies or dies as a test says. Runs in threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STREAMS = ("/v1/completions", "/v1/chat/completions")


@dataclass
class Behaviour:
    """`cost` is tokens per word; `overhead` is what the endpoint puts around every text prompt."""

    takes_ids: bool = True
    has_tokenize: bool = True
    has_completions: bool = True
    lists_models: bool = True
    refused_fields: tuple[str, ...] = ()
    gives_usage: bool = True
    cost: int = 1
    overhead: int = 0
    ids_overhead: int = 0
    answer_tokens: int | None = None  # where it ends an answer of its own accord
    tokens_per_chunk: int = 1
    logprobs: bool = False
    stops_midway: bool = False
    key: str | None = None
    fails: dict[int, tuple[int, str]] = field(default_factory=dict)  # number of the stream -> status and message
    fails_from: int | None = None
    dies_at: int | None = None  # number of the stream in the middle of which it dies
    storage: str | None = None  # what it says of its storage, where servers of ours say it


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # or many clients at once would wait a second for their connection


class StubEndpoint:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.streams: list[dict[str, Any]] = []  # bodies of the streams asked for, probes too
        self.lock = threading.Lock()
        self.hung_up = 0
        self.dead = False
        self._sockets: list[Any] = []
        outer = self

        class Handler(_Handler):
            stub = outer

            def setup(self) -> None:
                super().setup()
                outer._sockets.append(self.connection)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def prompts(self) -> list[Any]:
        return [body.get("prompt", body.get("messages")) for body in self.streams]

    def die(self) -> None:
        """No connection is left and no new one is taken."""
        with self.lock:
            if self.dead:
                return
            self.dead = True
        self._server.shutdown()
        self._server.server_close()
        for each in self._sockets:
            try:
                each.shutdown(2)
            except OSError:  # closed by its client
                continue
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    stub: StubEndpoint

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client hung up, or the stub died
            return

    def do_GET(self) -> None:
        if not self._authorised():
            return
        if self.path == "/v1/models" and self.stub.behaviour.lists_models:
            self._json(200, {"object": "list", "data": [{"id": "stub-model", "object": "model"}]})
        elif self.path == "/version":
            self._json(200, {"version": "1.2.3"})
        elif self.path == "/v1/internal/routes" and self.stub.behaviour.storage is not None:
            routes = [{"route": self.stub.behaviour.storage, "reason": "a stub", "count": len(self.stub.streams)}]
            self._json(200, {"storage": self.stub.behaviour.storage, "routes": routes})
        else:
            self._error(404, "no such route")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        behaviour = self.stub.behaviour
        if not self._authorised():
            return
        if self.path == "/tokenize" and behaviour.has_tokenize and "prompt" in body:
            words = body["prompt"].split()
            self._json(200, {"count": len(words), "tokens": [100 + index for index in range(len(words))]})
        elif self.path in STREAMS[0 if behaviour.has_completions else 1 :]:
            self._complete(body)
        else:
            self._error(404, "no such route")

    def _authorised(self) -> bool:
        key = self.stub.behaviour.key
        if key is None or self.headers.get("authorization") == f"Bearer {key}":
            return True
        self._error(401, "wrong key")
        return False

    def _complete(self, body: dict[str, Any]) -> None:
        behaviour = self.stub.behaviour
        for name in behaviour.refused_fields:
            if name in body:
                return self._error(400, f"unknown field {name}")
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        if isinstance(prompt, list) and not behaviour.takes_ids:
            return self._error(400, "prompt must be a string")
        usage = {"prompt_tokens": self._count(prompt), "completion_tokens": self._length(body)}
        if not body["stream"]:
            return self._json(200, {"choices": [], **({"usage": usage} if behaviour.gives_usage else {})})
        with self.stub.lock:
            number = len(self.stub.streams)
            self.stub.streams.append(body)
        failure = behaviour.fails.get(number)
        if behaviour.fails_from is not None and number >= behaviour.fails_from:
            failure = (500, "out of order")
        if failure is not None:
            return self._error(*failure)
        return self._stream(body, number, usage)

    def _count(self, prompt: str | list[int]) -> int:
        behaviour = self.stub.behaviour
        if isinstance(prompt, list):
            return len(prompt) + behaviour.ids_overhead
        padding = prompt.count("!")  # a token each, as letters are to a tokenizer of bytes
        return behaviour.overhead + len(prompt.replace("!", "").split()) * behaviour.cost + padding

    def _length(self, body: dict[str, Any]) -> int:
        own = self.stub.behaviour.answer_tokens
        return int(body["max_tokens"]) if own is None or body.get("ignore_eos") else min(own, body["max_tokens"])

    def _stream(self, body: dict[str, Any], number: int, usage: dict[str, int]) -> None:
        behaviour = self.stub.behaviour
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        chat = "messages" in body
        left = usage["completion_tokens"]
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        try:
            while left:
                carried = min(left, behaviour.tokens_per_chunk)
                left -= carried
                text = " word" * carried
                choice: dict[str, Any] = {"index": 0, "finish_reason": None}
                choice |= {"delta": {"content": text}} if chat else {"text": text}
                if behaviour.logprobs:
                    choice["logprobs"] = {"tokens": [" word"] * carried}
                self._event({"choices": [choice]})
                if behaviour.dies_at == number:
                    return self.stub.die()
                if behaviour.stops_midway:
                    self.close_connection = True
                    return self._chunk(b"")
            self._event({"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]})
            if behaviour.gives_usage and body.get("stream_options", {}).get("include_usage"):
                self._event({"choices": [], "usage": usage})
            self._chunk(b": keep-alive\n\ndata: [DONE]\n\n")
            self._chunk(b"")
        except OSError:
            with self.stub.lock:
                self.stub.hung_up += 1
            raise
        return None

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(content)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "stub", "code": None}})

    def _json(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving_stub(**behaviour: Any) -> Iterator[StubEndpoint]:
    stub = StubEndpoint(Behaviour(**behaviour))
    try:
        yield stub
    finally:
        stub.die()
