"""The machine at work, as one plain snapshot that crosses process boundaries: made only when somebody asks.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from octavo.cache.block_map import GroupMap
from octavo.engine.stats import EngineStats

RequestStage = Literal["waiting", "running"]
MAX_REQUESTS = 512  # running ones first; further ones are counted


class RequestProgress(NamedTuple):
    """How far one choice of a request is, in tokens. One that waits with tokens generated was preempted.

    `cached` of its prompt were there when it first ran, None before; `max_generated` is None where there is no limit.
    `age_s` is seconds since it was queued.
    """

    request_id: str
    choice: int
    stage: RequestStage
    priority: int
    prompt: int
    computed: int
    cached: int | None
    generated: int
    max_generated: int | None
    age_s: float


@dataclass(frozen=True, slots=True)
class MachineView:
    """Block maps per group, requests, and the memory ledger as `octavo inspect --json` has it.

    `group_kinds` are the kinds of attention, `group_layers` the numbers of layers and `group_windows` the windows.
    """

    maps: tuple[GroupMap, ...] = ()
    requests: tuple[RequestProgress, ...] = ()
    num_left_out: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    group_kinds: tuple[str, ...] = ()
    group_layers: tuple[int, ...] = ()
    group_windows: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """All as of one moment between two steps, so `stats.blocks` and the maps agree.

    `at_s` is the engine's clock, to tell rates from two snapshots; `took_s` is how long the engine was held up by it.
    """

    at_s: float
    took_s: float
    stats: EngineStats
    view: MachineView
