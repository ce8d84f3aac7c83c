"""The server's picture of its machine, as `octavo top` reads it; and what two of them tell of the time between."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pydantic import BaseModel

WINDOW_S = 5.0  # that rates are told of


class ServerPart(BaseModel):
    """`instance` is another after a restart."""

    version: str
    instance: str
    uptime_s: float


class EnginePart(BaseModel):
    """`busy`: there is no newer picture because a step takes long."""

    state: str
    reason: str
    busy: bool


class ModelPart(BaseModel):
    """What was chosen for the model."""

    name: str
    family: str
    storage: str
    dtype: str
    kv_dtype: str
    weights: str
    max_context: int


class RequestPart(BaseModel):
    """Tokens; None where there is no limit, or nothing is known yet."""

    id: str
    stage: str
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int | None
    generated_tokens: int
    max_generated_tokens: int | None
    age_s: float


class GroupPart(BaseModel):
    """`counts` are blocks by state: free, live, shared, cached, pinned."""

    group: int
    kind: str
    layers: int
    window: int | None
    blocks: int
    block_size: int
    counts: dict[str, int]


class PrefixPart(BaseModel):
    """Since the engine began."""

    hits: int
    misses: int
    hit_tokens: int
    evictions: int


class CachePart(BaseModel):
    """Tokens and preemptions since the engine began."""

    prefix_cache: PrefixPart
    prompt_tokens: int
    cached_prompt_tokens: int
    preemptions: int


class RoutePart(BaseModel):
    """How often row groups attended by `route`, for `reason`."""

    route: str
    reason: str
    count: int


class RatesPart(BaseModel):
    """Mean seconds since the picture before; None where there was none."""

    first_token_s: float | None
    inter_token_s: float | None
    step_s: float | None


class MemoryPart(BaseModel):
    """Bytes, as `octavo inspect` counts them."""

    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int = 0
    activation_bytes: int = 0
    total_bytes: int | None = None
    available_bytes: int | None = None


class MachinePart(BaseModel):
    """All as of the engine's clock at `at_s`."""

    at_s: float
    rates: RatesPart
    steps: int
    generated_tokens: int
    waiting: int
    running: int
    requests: list[RequestPart]
    requests_left_out: int
    groups: list[GroupPart]
    cache: CachePart
    routes: list[RoutePart]
    memory: MemoryPart


class Picture(BaseModel):
    """One event of /v1/internal/events. Fields that are not named here are passed over."""

    server: ServerPart
    engine: EnginePart
    model: ModelPart | None
    machine: MachinePart | None


@dataclass(frozen=True, slots=True)
class Trend:
    """Per second, and mean seconds, over the last seconds; None where nothing can be told."""

    generated: float | None = None
    prompt: float | None = None
    steps: float | None = None
    first_token_s: float | None = None
    inter_token_s: float | None = None
    step_s: float | None = None


class History:
    """The pictures of the last `WINDOW_S` seconds of one engine."""

    def __init__(self) -> None:
        self._instance = ""
        self._machines: deque[MachinePart] = deque()

    def add(self, picture: Picture) -> Trend:
        """What the pictures so far tell, with this one. Those of another engine are forgotten."""
        machines, machine = self._machines, picture.machine
        if picture.server.instance != self._instance or machine is None:
            self._instance = picture.server.instance
            machines.clear()
        if machine is None:
            return Trend()
        machines.append(machine)
        while machines[0].at_s < machine.at_s - WINDOW_S:
            machines.popleft()
        first, seconds = machines[0], machine.at_s - machines[0].at_s
        if seconds <= 0:
            return Trend()
        rates = [each.rates for each in machines]
        return Trend(
            generated=(machine.generated_tokens - first.generated_tokens) / seconds,
            prompt=(machine.cache.prompt_tokens - first.cache.prompt_tokens) / seconds,
            steps=(machine.steps - first.steps) / seconds,
            first_token_s=_mean([each.first_token_s for each in rates]),
            inter_token_s=_mean([each.inter_token_s for each in rates]),
            step_s=_mean([each.step_s for each in rates]),
        )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
