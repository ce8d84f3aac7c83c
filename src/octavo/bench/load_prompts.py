"""Prompts of an exact number of tokens, no two alike. Knows how lengths were made sure of, and says so."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from octavo.bench.load_endpoint import Endpoint, EndpointControl, Prompt
from octavo.errors import InvalidRequest
from octavo.tokenizer import Tokenizer

# One token each, with the space before it, in the vocabularies in use; that is measured, not assumed.
_WORD_LINE = (
    "time year people way day man thing world life hand part place case week work night point home water room "
    "mother area money story fact month book word house power game line end law car city name team idea body"
)
WORDS = tuple(_WORD_LINE.split())
# For vocabularies of bytes or characters, where a word costs several.
_PADS = ("!", "\n", "0", "a")
_OPENING = "The"
_ADJUSTMENTS = 8

Counter = Callable[[str], Awaitable[int | None]]


class PromptSource(Protocol):
    """`how` is one line: by what means the lengths are exact."""

    @property
    def how(self) -> str: ...

    def prompt(self, num_tokens: int, draw: random.Random, shared: int = 0) -> Prompt:
        """`num_tokens` tokens of which all prompts share the first `shared`; the rest is drawn.

        Raises `InvalidRequest` if there is no prompt that short.
        """
        ...


class TokenIdPrompts:
    """Drawn token ids, sent as they are."""

    def __init__(self, pool: Sequence[int], origin: str) -> None:
        self._pool = sorted(set(pool))
        self.how = f"token ids from {origin}"

    def prompt(self, num_tokens: int, draw: random.Random, shared: int = 0) -> Prompt:
        begin = random.Random(0).choices(self._pool, k=shared)
        return begin + draw.choices(self._pool, k=num_tokens - shared)


class TextPrompts:
    """Drawn words of known cost after a fixed opening, and padding where the words' cost leaves a rest."""

    def __init__(self, words: Sequence[str], word_cost: int, overhead: int, pad: str | None, origin: str) -> None:
        self._words, self._cost, self._overhead, self._pad = words, word_cost, overhead, pad
        self.how = f"text, counted by {origin}"

    def prompt(self, num_tokens: int, draw: random.Random, shared: int = 0) -> Prompt:
        room = num_tokens - self._overhead
        num_words, rest = divmod(room, self._cost)
        if room < 0:
            raise InvalidRequest(
                f"cannot make a prompt of {num_tokens} tokens: the shortest has {self._overhead}, with any chat "
                "template; raise --prompt-tokens (the ragged mix goes down to an eighth of it)"
            )
        if rest and self._pad is None:
            raise InvalidRequest(
                f"cannot make a prompt of exactly {num_tokens} tokens: the shortest has {self._overhead} and a word "
                f"adds {self._cost}; give another --prompt-tokens"
            )
        num_shared = min(num_words, max(0, shared - self._overhead) // self._cost)
        words = random.Random(0).choices(self._words, k=num_shared)
        words += draw.choices(self._words, k=num_words - num_shared)
        return "".join([_OPENING, *(f" {word}" for word in words), (self._pad or "") * rest])


async def prompt_source(
    control: EndpointControl, endpoint: Endpoint, tokenizer: Tokenizer | None, lengths: Sequence[int]
) -> PromptSource:
    """The most exact source that the endpoint allows: token ids, else text that `tokenizer` or the endpoint counts.

    Raises `InvalidRequest` if neither can make prompts of all `lengths`.
    """
    words = " ".join([_OPENING, *WORDS])
    if endpoint.api == "completions":
        if tokenizer is not None:
            pool, origin = tokenizer.encode(words, add_special_tokens=False), "the given tokenizer"
        else:
            pool, origin = (await control.tokenize(endpoint, words) or [])[1:], "the endpoint's /tokenize"
        # Equal counts show that it takes ids as they are, with nothing put before them.
        if len(set(pool)) > 1 and await control.count(endpoint, pool[:8]) == len(pool[:8]):
            return TokenIdPrompts(pool, origin)

    async def count_locally(text: str) -> int | None:
        assert tokenizer is not None
        return len(tokenizer.encode(text))

    async def count_remotely(text: str) -> int | None:
        return await control.count(endpoint, text)

    if tokenizer is not None:
        origin = "the given tokenizer" + (", chat template not counted" if endpoint.api == "chat" else "")
        return await calibrate(count_locally, lengths, origin)
    return await calibrate(count_remotely, lengths, "the endpoint's usage.prompt_tokens")


async def calibrate(count: Counter, lengths: Sequence[int], origin: str) -> TextPrompts:
    """Find words of one cost, and what an empty prompt costs, so that each of `lengths` counts exactly.

    Raises `InvalidRequest` if there is no count, or no exact prompt after a few adjustments.
    """

    async def counted(text: str) -> int:
        found = await count(text)
        if found is None:
            raise InvalidRequest("the endpoint does not say how long a prompt is; give --tokenizer MODEL")
        return found

    overhead = await counted(_OPENING)
    words, cost = await _equal_words(counted, overhead)
    pad = None
    if cost > 1:
        for candidate in _PADS:
            if await counted(_OPENING + candidate * (cost - 1)) == overhead + cost - 1:
                pad = candidate
                break
    longest = max(lengths)
    for _ in range(_ADJUSTMENTS):
        source = TextPrompts(words, cost, overhead, pad, origin)
        off = await counted(str(source.prompt(longest, random.Random(1)))) - longest
        if off == 0:
            break
        overhead += off
    else:
        raise InvalidRequest(
            f"no prompt of exactly {longest} tokens was found: {origin} counts {longest + off}; give --tokenizer "
            "MODEL, or another --prompt-tokens"
        )
    for length in sorted(set(lengths))[:2]:  # refuse lengths below the overhead before anything runs
        off = await counted(str(source.prompt(length, random.Random(2)))) - length
        if off != 0:
            raise InvalidRequest(
                f"a prompt of {length} tokens comes out as {length + off} by {origin}; give --tokenizer MODEL"
            )
    return source


async def _equal_words(counted: Callable[[str], Awaitable[int]], overhead: int) -> tuple[list[str], int]:
    """At least two words that cost the same, and that cost in tokens: the lowest there is."""
    if await counted(" ".join([_OPENING, *WORDS])) == overhead + len(WORDS):
        return list(WORDS), 1
    costs: dict[int, list[str]] = {}
    for word in WORDS:
        cost = (await counted(f"{_OPENING} {word} {word}") - overhead) // 2
        costs.setdefault(cost, []).append(word)
    for cost in sorted(costs):
        if cost > 0 and len(costs[cost]) > 1:
            return costs[cost], cost
    raise InvalidRequest("no two words of one length in tokens were found; give --tokenizer MODEL")
