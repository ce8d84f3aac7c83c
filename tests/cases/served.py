"""A server process over the scripted model, as clients meet it: calls, streams read back, and what is left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.server_process import ServerProcess

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WAIT_S = 20.0
STALE_S = 0.3  # counts of the engine are 0.2 s old at most


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@dataclass(frozen=True)
class Served:
    """`client` may be used by several threads."""

    server: ServerProcess
    client: httpx.Client

    def post(self, path: str, fields: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json=fields)

    def whole(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The answer, which must be a 200."""
        answer = self.post(path, fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def chunks(self, path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a stream, which must end with [DONE]."""
        with self.client.stream("POST", path, json={**fields, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            *chunks, done = events_of(response)
        assert done == "[DONE]"
        return chunks

    def refused(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The error of a request that must be a 400 before any of its stream."""
        answer = self.post(path, fields)
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/json", answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def at_once(self, *calls: Any) -> list[Any]:
        """The results of `calls`, each made by a thread of its own."""
        with ThreadPoolExecutor(len(calls)) as threads:
            return [each.result() for each in [threads.submit(call) for call in calls]]

    def blocks(self) -> list[dict[str, int]]:
        """Of each group of layers, how many are free, live and cached."""
        groups: list[dict[str, int]] = self.client.get("/v1/cache/stats").json()["groups"]
        return groups

    def counter(self, name: str) -> float:
        """A sample of /metrics."""
        page = self.client.get("/metrics").text
        return next(float(line.split()[-1]) for line in page.splitlines() if line.split(" ")[0] == name)

    def until(self, condition: Any) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, (self.blocks(), self.server.log[-2000:])
            time.sleep(0.02)

    def settle(self) -> None:
        """Let what the server tells of the engine become newer than all that was done to it."""
        time.sleep(STALE_S)

    def until_idle(self) -> None:
        """No request runs or waits, and none holds a block."""
        self.until(
            lambda: (
                all(group["live"] == 0 for group in self.blocks())
                and self.counter("octavo_running_requests") == self.counter("octavo_queue_requests") == 0
            )
        )


def events_of(response: httpx.Response) -> Iterator[Any]:
    """The data of server-sent events in order: JSON, or the text [DONE]."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def deltas_of(chunks: list[dict[str, Any]], index: int = 0) -> list[str]:
    """The texts of one choice as they came."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice of either API."""
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found
