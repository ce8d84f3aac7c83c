"""Which requests a cell sends: lengths, common beginnings, disconnects. Seeded; sends nothing."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from octavo.bench.load_endpoint import Endpoint
from octavo.bench.load_prompts import PromptSource
from octavo.errors import InvalidRequest

MixName = Literal["plain", "shared-prefix", "ragged", "cancel"]
RAGGED_RANGE = 8  # the longest over the shortest


@dataclass(frozen=True, slots=True)
class Mix:
    """`shared_percent` of each prompt is common to all under `shared-prefix`; `cancel_percent` of the clients of
    `cancel` hang up midway. `prompt_tokens` and `max_tokens` are the most under `ragged`.
    """

    name: MixName
    prompt_tokens: int
    max_tokens: int
    shared_percent: int = 50
    cancel_percent: int = 25

    @classmethod
    def of(cls, name: str, prompt_tokens: int, max_tokens: int, shared_percent: int, cancel_percent: int) -> Mix:
        """Raises `InvalidRequest` for values that cannot be."""
        for known in get_args(MixName):
            if known == name:
                return cls(known, prompt_tokens, max_tokens, shared_percent, cancel_percent)
        raise InvalidRequest(f"the mix is {name!r}; it is one of {', '.join(get_args(MixName))}")

    def as_object(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """One request of a cell. `cancel_after` is the chunk with output after which the client hangs up."""

    prompt_tokens: int
    max_tokens: int
    shared_tokens: int = 0
    cancel_after: int | None = None


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A plan made ready to send."""

    plan: Plan
    path: str
    body: bytes


def plan_cell(mix: Mix, seed: int, concurrency: int, num_requests: int) -> list[Plan]:
    """The requests of one cell: the same in every round, so that rounds can be compared."""
    draw = random.Random(f"{seed} {mix.name} {concurrency}")
    plans = []
    cancelled = _cancelled(mix, num_requests, draw)
    for index in range(num_requests):
        if mix.name == "ragged":
            plans.append(Plan(_ragged(mix.prompt_tokens, draw), _ragged(mix.max_tokens, draw)))
        elif mix.name == "shared-prefix":
            plans.append(Plan(mix.prompt_tokens, mix.max_tokens, mix.prompt_tokens * mix.shared_percent // 100))
        else:
            after = draw.randint(1, max(1, mix.max_tokens - 1)) if index in cancelled else None
            plans.append(Plan(mix.prompt_tokens, mix.max_tokens, cancel_after=after))
    return plans


def make_requests(plans: list[Plan], endpoint: Endpoint, source: PromptSource, seed: str) -> list[LoadRequest]:
    """Give each plan a prompt of its own; another `seed` gives other prompts of the same lengths."""
    draw = random.Random(seed)
    return [
        LoadRequest(
            plan,
            endpoint.path,
            endpoint.body(source.prompt(plan.prompt_tokens, draw, plan.shared_tokens), plan.max_tokens),
        )
        for plan in plans
    ]


def prompt_lengths(mix: Mix, seed: int, concurrencies: tuple[int, ...], per_client: int) -> list[int]:
    """Every prompt length that the run will ask for."""
    plans = [plan for each in concurrencies for plan in plan_cell(mix, seed, each, each * per_client)]
    return sorted({plan.prompt_tokens for plan in plans})


def _cancelled(mix: Mix, num_requests: int, draw: random.Random) -> set[int]:
    """Indices of the requests whose client hangs up: at least one, so that the mix is what it says; never all."""
    if mix.name != "cancel":
        return set()
    count = max(1, round(num_requests * mix.cancel_percent / 100))
    return set(draw.sample(range(num_requests), min(count, num_requests - 1)))


def _ragged(most: int, draw: random.Random) -> int:
    """Log-uniform between an eighth of `most` and `most`."""
    return max(1, round(most * math.exp(-draw.random() * math.log(RAGGED_RANGE))))
