"""The lines of a batch: what a request's says, and how its answer or its error is written. It answers nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any
from uuid import uuid4

from octavo.errors import shown
from octavo.server.errors import HttpError
from octavo.server.strict_json import read_object

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MAX_LINE_BYTES = 16 << 20
MAX_CUSTOM_ID = 512  # characters
_FIELDS = ("custom_id", "method", "url", "body")

# What an answer is known by: its custom_id, or the number of its line where that has none to itself.
LineKey = str | int


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line cannot be answered at all."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request. `body` is JSON; it and `url` are empty where there is an `error`. `number` counts from 1."""

    number: int
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    error: LineError | None = None

    @property
    def key(self) -> LineKey:
        return self.number if self.custom_id is None or self.error is not None else self.custom_id


def read_lines(file: IO[bytes], urls: tuple[str, ...]) -> Iterator[BatchLine]:
    """The requests of a file, blank lines left out. One that is not to be used has an error.

    `urls` are those that may be asked. A custom_id that came before is an error too.
    """
    seen: set[str] = set()
    for number, raw in enumerate(_raw_lines(file), 1):
        if raw.strip():
            yield _read(number, raw.strip(), urls, seen)


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Each line; of one that is too long, a beginning that is too long."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES)
        yield raw


def _read(number: int, raw: bytes, urls: tuple[str, ...], seen: set[str]) -> BatchLine:
    custom_id: str | None = None

    def bad(message: str, code: str = "invalid_line") -> BatchLine:
        return BatchLine(number, custom_id, error=LineError(code, f"line {number}: {message}"))

    if len(raw) > MAX_LINE_BYTES:
        return bad(f"it is longer than {MAX_LINE_BYTES} bytes; shorten it")
    try:
        line = read_object(raw)
    except HttpError as error:
        return bad(str(error).replace("the body", "it", 1))
    found = line.get("custom_id")
    if not isinstance(found, str) or not 0 < len(found) <= MAX_CUSTOM_ID:
        return bad(f"custom_id is {shown(found)}; give a text of 1 to {MAX_CUSTOM_ID} characters")
    custom_id = found
    if custom_id in seen:
        return bad(f"custom_id {shown(custom_id)} was given before; give each line its own", "duplicate_custom_id")
    seen.add(custom_id)
    for name in line:
        if name not in _FIELDS:
            return bad(f"{shown(name)} is not a field of a line; it has {', '.join(_FIELDS)}")
    if line.get("method") != "POST":
        return bad(f"method is {shown(line.get('method'))}; only POST is taken")
    url, body = line.get("url"), line.get("body")
    if url not in urls:
        return bad(f"url is {shown(url)}; give one of {', '.join(urls)}")
    if not isinstance(body, dict):
        return bad(f"body is {shown(body)}; give the request as an object")
    if body.get("stream") is True:
        return bad("body.stream is true, and a batch is answered whole; leave it out")
    return BatchLine(number, custom_id, url, json.dumps(body).encode("ascii"))


def answer_line(line: BatchLine, status: int, request_id: str, body: dict[str, Any]) -> bytes:
    """The line of an answer, be it 200 or another."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _written({"custom_id": line.custom_id, "response": response, "error": None})


def error_line(line: BatchLine) -> bytes:
    """The line of one that has an error. It names the line it came from."""
    assert line.error is not None, "the line can be answered"
    error = {"code": line.error.code, "message": line.error.message, "line": line.number}
    return _written({"custom_id": line.custom_id, "response": None, "error": error})


def key_of_answer(raw: bytes) -> LineKey | None:
    """What the answer on a line is known by; None if it is no answer of a batch."""
    try:
        answer = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(answer, dict) or not {"custom_id", "response", "error"} <= answer.keys():
        return None
    error, custom_id = answer["error"], answer["custom_id"]
    key = error.get("line") if isinstance(error, dict) else custom_id
    return key if isinstance(key, str | int) else None


def _written(answer: dict[str, Any]) -> bytes:
    return json.dumps({"id": f"batch_req_{uuid4().hex}", **answer}).encode("ascii") + b"\n"
