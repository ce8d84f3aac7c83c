"""Traffic beside what is compared on a server: other prompts, sampled or greedy, whole, streamed or broken off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

LANES = 4  # clients at once
_SALTS = (None, None, "one", "two")


@dataclass(slots=True)
class NoiseCounts:
    """How requests ended. One that was broken off never got its whole answer."""

    finished: int = 0
    broken_off: int = 0


class NoiseLane:
    """One client, which asks again and again until it is cancelled; `counts` are shared by all."""

    def __init__(self, number: int, texts: Sequence[str], max_tokens: int, counts: NoiseCounts) -> None:
        """Prompts are beginnings of `texts`, with something of their own after them or not."""
        self._draw = random.Random(number)
        self._texts = texts
        self._max_tokens = max_tokens
        self._counts = counts

    async def run(self, client: httpx.AsyncClient) -> str:
        """Returns what went wrong; until then it goes on."""
        while True:
            path, body = self._request()
            try:
                problem = await self._ask(client, path, body)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                return f"other traffic failed: {problem}"

    async def _ask(self, client: httpx.AsyncClient, path: str, body: dict[str, object]) -> str | None:
        """Hangs up after some lines, or none, of what is streamed; an event is two."""
        patience = self._draw.choice((1 << 30, 1 << 30, 1, 5, 20))
        lines = 0
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                return f"answered {response.status_code}: {(await response.aread()).decode()}"
            async for line in response.aiter_lines():
                lines += 1
                if '"error"' in line:
                    return line
                if lines == patience and body["stream"]:
                    self._counts.broken_off += 1
                    return None
        self._counts.finished += 1
        return None

    def _request(self) -> tuple[str, dict[str, object]]:
        draw = self._draw
        text = draw.choice(self._texts)
        prompt = text[: draw.randint(1, len(text))] + draw.choice(("", f" {draw.randrange(1000)}"))
        body: dict[str, object] = {
            "max_tokens": draw.randint(1, self._max_tokens),
            "temperature": draw.choice((0.0, 0.7, 1.5)),
            "top_p": draw.choice((1.0, 0.9)),
            "top_k": draw.choice((0, 20)),
            "repetition_penalty": draw.choice((1.0, 1.2)),
            "seed": draw.randrange(1 << 31),
            "ignore_eos": draw.random() < 0.5,
            "priority": draw.choice((-1, 0, 0, 1)),
            "cache_salt": draw.choice(_SALTS),
            "stream": draw.random() < 0.7,
            "prompt": prompt,
        }
        return "/v1/completions", body
