"""How the clients of a soak behave: most read their answer and check it, others leave in one way or another."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from tests.soak.questions import Expected, Question

Fate = Literal["read", "read slowly", "hang up", "vanish", "send half", "ask too much"]
FATES: dict[Fate, int] = {  # weights
    "read": 62,
    "read slowly": 4,
    "hang up": 15,
    "vanish": 12,
    "send half": 3,
    "ask too much": 4,
}
DEADLINE_S = 120.0  # to be let in, and again for the answer; nothing may take so long
RETRY_S = 0.25
_RESET = struct.pack("ii", 1, 0)  # linger: closing sends a reset, not an end


class Wrong(Exception):
    """An answer that is not what it should be."""


class Unavailable(Exception):
    """The server takes no requests."""


@dataclass(slots=True)
class Tally:
    """Requests by how they ended, and how often a full queue sent one away for a while."""

    fates: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))
    streamed: int = 0
    sampled: int = 0
    queue_full: int = 0
    most_refusals: int = 0  # of one request, before it was let in

    @property
    def survivors(self) -> int:
        """Answers read to the end, each of which was equal."""
        return self.fates["read"] + self.fates["read slowly"]


class Clients:
    """All of one server's. Whatever is not over, or not let in, after `DEADLINE_S` raises `Wrong` or `TimeoutError`."""

    def __init__(self, url: str, http: httpx.AsyncClient, tally: Tally) -> None:
        self._address = urlsplit(url)
        self._http = http
        self._tally = tally

    async def ask(self, question: Question, draw: random.Random) -> None:
        """One request with a fate that is drawn. Raises `Wrong`, or `Unavailable` if it was not let in."""
        fate = draw.choices(list(FATES), list(FATES.values()))[0]
        stream = fate in ("read slowly", "hang up") or draw.random() < 0.5
        priority, salt = draw.choice((-2, -1, 0, 0, 0, 1, 2)), draw.choice((None, None, None, "one"))
        body = body_of(question, stream=stream) | {"priority": priority, "cache_salt": salt}
        if fate in ("read", "read slowly"):
            await self.read(question, body, slowly=fate == "read slowly")
            self._tally.streamed += stream
            self._tally.sampled += "seed" in body
        else:
            async with asyncio.timeout(DEADLINE_S):
                await self._leave(fate, question, body, draw)
        self._tally.fates[fate] += 1

    async def _leave(self, fate: Fate, question: Question, body: dict[str, Any], draw: random.Random) -> None:
        """Ask for what no answer is read to its end of."""
        if fate == "hang up":
            await self._hang_up(question.path, body, draw.randint(0, 30))
        elif fate == "ask too much":
            await self._ask_too_much(question.path, body, draw)
        else:
            await self._vanish(question.path, body, draw, whole=fate == "vanish")

    async def read(self, question: Question, body: dict[str, Any], *, slowly: bool = False) -> None:
        """Read the whole answer, and compare it. Waits and asks again while the queue is full."""
        for refusals in range(int(DEADLINE_S / RETRY_S)):
            try:
                async with asyncio.timeout(DEADLINE_S):
                    told = await self._try(question, body, slowly=slowly)
            except TimeoutError as error:
                raise Wrong(f"stuck for {DEADLINE_S:g} s: {body}") from error
            self._tally.most_refusals = max(self._tally.most_refusals, refusals)
            if told is not None:
                return check(question, told)
            await asyncio.sleep(RETRY_S)
        raise Wrong(f"never let in for {DEADLINE_S:g} s: {body}")

    async def _try(self, question: Question, body: dict[str, Any], *, slowly: bool) -> Told | None:
        """None if the queue is full."""
        async with self._http.stream("POST", question.path, json=body) as response:
            if response.status_code != 200:
                await self._refused(response)
                return None
            if body["stream"]:
                return await _read_stream(response, 0.005 if slowly else 0.0)
            return Told().take(json.loads(await response.aread()), whole=True)

    async def _refused(self, response: httpx.Response) -> None:
        """Count a full queue. Raises `Unavailable`, or `Wrong` for any other answer."""
        said = json.loads(await response.aread())["error"]
        if response.status_code == 503:
            raise Unavailable(said["message"])
        if response.status_code != 429 or "retry-after" not in response.headers:
            raise Wrong(f"answered {response.status_code}: {said}")
        self._tally.queue_full += 1

    async def _hang_up(self, path: str, body: dict[str, Any], lines: int) -> None:
        """Close a stream after so many lines; some end before."""
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                return await self._refused(response)
            async for _ in response.aiter_lines():
                lines -= 1
                if lines < 0:
                    return None
        return None

    async def _ask_too_much(self, path: str, body: dict[str, Any], draw: random.Random) -> None:
        field_name, value = draw.choice((("max_tokens", -1), ("n", 1000), ("logit_bias", {"5": "x"}), ("nonsense", 1)))
        response = await self._http.post(path, json={**body, field_name: value})
        if response.status_code == 503:
            raise Unavailable(response.text)
        if response.status_code != 400 or field_name not in response.text:
            raise Wrong(f"{field_name} {value} was answered {response.status_code}: {response.text}")

    async def _vanish(self, path: str, body: dict[str, Any], draw: random.Random, *, whole: bool) -> None:
        """Send a request, or half of one, and be gone: by an end of the connection, or a reset."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        sent = head.encode() + data
        assert self._address.hostname is not None
        try:
            _, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
            writer.write(sent if whole else sent[: len(sent) // 2])
            await writer.drain()
            await asyncio.sleep(draw.uniform(0.0, 0.05))
            if draw.random() < 0.5:
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.close()
            await writer.wait_closed()
        except ConnectionRefusedError as error:
            raise Unavailable("nobody listens") from error
        except ConnectionResetError:  # the server was first
            return


def body_of(question: Question, *, stream: bool) -> dict[str, Any]:
    """The request's JSON. Either way the answer tells its usage."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {**question.body, "stream": stream, **options}


class Told:
    """What an answer said so far."""

    def __init__(self) -> None:
        self.choices: dict[int, Expected] = {}
        self.usage: dict[str, Any] | None = None
        self.ended = False

    def take(self, found: dict[str, Any], *, whole: bool) -> Told:
        """A whole answer, or an event of a stream."""
        if "error" in found:
            raise Wrong(f"broken off: {found['error']}")
        for choice in found["choices"]:
            self._take_choice(choice, whole=whole)
        self.usage = found["usage"] or self.usage
        self.ended = self.ended or whole
        return self

    def _take_choice(self, choice: dict[str, Any], *, whole: bool) -> None:
        said = choice if "text" in choice else choice["message" if whole else "delta"]
        text = said.get("text", said.get("content")) or ""
        before = self.choices.get(choice["index"])
        logprobs = choice.get("logprobs")
        if before is not None:
            if before.finish_reason:
                raise Wrong(f"choice {choice['index']} went on after its end")
            text = before.text + text
            if logprobs is not None and before.logprobs is not None:
                logprobs = {name: before.logprobs[name] + values for name, values in logprobs.items()}
        self.choices[choice["index"]] = Expected(text, choice["finish_reason"] or "", logprobs)


async def _read_stream(response: httpx.Response, pause_s: float) -> Told:
    told = Told()
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            told.ended = True
        elif line.startswith("data: "):
            told.take(json.loads(line.removeprefix("data: ")), whole=False)
            if pause_s:
                await asyncio.sleep(pause_s)
    return told


def check(question: Question, told: Told) -> None:
    """Raises `Wrong` unless what was told is what an engine alone answers."""
    choices = tuple(told.choices[index] for index in sorted(told.choices))
    if not told.ended:
        raise Wrong("the stream ended without [DONE]")
    if choices != question.choices:
        raise Wrong(f"{question.body} was answered {choices}, not {question.choices}")
    usage = told.usage or {}
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    if counts != (question.prompt_tokens, question.completion_tokens):
        raise Wrong(f"{question.body} was counted as {counts}")
