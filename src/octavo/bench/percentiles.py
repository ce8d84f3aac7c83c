"""Percentiles of samples and spreads of rounds. Plain Python: no numpy, no time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `samples` lie, between two samples by linear interpolation.

    Raises `ValueError` if there are no samples or `percent` is not 0 to 100.
    """
    if not samples or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent} of {len(samples)} samples")
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of the samples of one round, in their unit."""

    p50: float
    p95: float
    p99: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quantiles | None:
        """None without samples."""
        if not samples:
            return None
        ordered = sorted(samples)
        return cls(percentile(ordered, 50), percentile(ordered, 95), percentile(ordered, 99), len(ordered))

    def as_object(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of several runs with the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def as_object(self) -> dict[str, float]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:,.2f} ({self.low:,.2f} to {self.high:,.2f})"
