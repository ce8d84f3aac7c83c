"""What an engine counts, as one plain snapshot that crosses process boundaries. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """`counts[i]` observations were at most `bounds[i]` and above the bound before; the last is for all above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks of one group; the three make up the whole pool."""

    free: int
    live: int
    cached: int


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """Lookups of the prefix cache that found something or nothing, and what became of its entries, ever."""

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    rejects: int = 0


@dataclass(frozen=True, slots=True)
class RouteCount:
    """Steps' row groups that attended by `route`, for `reason`."""

    route: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps of a GPU that were `replayed` from a graph, or launched otherwise for the reason that `how` says; and
    graphs `recorded`.
    """

    how: str
    count: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine began, and how full it is now. Times are seconds.

    `forced_tokens` of `generated_tokens` were not sampled: a grammar allowed no other.
    """

    num_waiting: int
    num_running: int
    blocks: tuple[BlockCounts, ...]
    steps: int
    step_seconds: HistogramCounts
    batch_size: HistogramCounts
    prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    preemptions: int
    prefix: PrefixCounts = PrefixCounts()
    routes: tuple[RouteCount, ...] = ()
    decode_steps: tuple[DecodeSteps, ...] = ()
    kv_bytes: int = 0
    weight_bytes: int = 0
    forced_tokens: int = 0
    queue_by_priority: dict[int, int] = field(default_factory=dict)
