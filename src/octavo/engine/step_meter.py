"""Counts what an engine's steps do, for `EngineStats`. Owns the counters; knows nothing of who reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from octavo.engine.stats import BlockCounts, DecodeSteps, EngineStats, HistogramCounts, PrefixCounts, RouteCount

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """How full an engine's memory is, and what its cache and routes have counted. Bytes."""

    blocks: tuple[BlockCounts, ...] = ()
    prefix: PrefixCounts = field(default_factory=PrefixCounts)
    routes: tuple[RouteCount, ...] = ()
    decode_steps: tuple[DecodeSteps, ...] = ()
    kv_bytes: int = 0
    weight_bytes: int = 0


class Measured(Protocol):
    """The part of an engine that statistics are read from."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    @property
    def preemptions(self) -> int:
        """Ever."""
        ...

    @property
    def forced_tokens(self) -> int:
        """Of those generated, ever."""
        ...

    @property
    def queue_by_priority(self) -> Mapping[int, int]:
        """How many wait, per priority."""
        ...

    def usage(self) -> EngineUsage: ...


class Histogram:
    """Observations by the smallest bound that they do not exceed."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> HistogramCounts:
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


class StepMeter:
    """One engine's counters since it began. Used by the engine's thread."""

    def __init__(self) -> None:
        self._seconds = Histogram(STEP_SECONDS)
        self._batch = Histogram(BATCH_SIZES)
        self._steps = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generated_tokens = 0

    def step(self, seconds: float, batch_size: int) -> None:
        self._steps += 1
        self._seconds.observe(seconds)
        self._batch.observe(batch_size)

    def stats(self, core: Measured) -> EngineStats:
        usage = core.usage()
        return EngineStats(
            num_waiting=core.num_waiting,
            num_running=core.num_running,
            blocks=usage.blocks,
            steps=self._steps,
            step_seconds=self._seconds.counts(),
            batch_size=self._batch.counts(),
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=core.preemptions,
            forced_tokens=core.forced_tokens,
            prefix=usage.prefix,
            routes=usage.routes,
            decode_steps=usage.decode_steps,
            kv_bytes=usage.kv_bytes,
            weight_bytes=usage.weight_bytes,
            queue_by_priority=dict(core.queue_by_priority),
        )
